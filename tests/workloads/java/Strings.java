// SPDX-License-Identifier: Apache-2.0
// Counts strings in a tree: HotSpot compares them in line (C2), with a word more on the stack meanwhile.

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

public class Strings {
    static int count(List<String> words) {
        Map<String, Integer> seen = new TreeMap<>();
        for (String word : words) {
            seen.merge(word, 1, Integer::sum);
        }
        return seen.size();
    }

    public static void main(String[] none) {
        List<String> words = new ArrayList<>();
        for (int i = 0; i < 1_500_000; i++) {
            words.add("k" + i * 31 % 200_000);
        }
        int all = 0;
        for (int i = 0; i < 4; i++) {
            all += count(words);
        }
        System.out.println(all);
    }
}

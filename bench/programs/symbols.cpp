// SPDX-License-Identifier: Apache-2.0
// Much inlining from the standard library, for bench/symbols.py.
#include <algorithm>
#include <iostream>
#include <map>
#include <memory>
#include <numeric>
#include <regex>
#include <sstream>
#include <string>
#include <unordered_map>
#include <vector>
struct Shape { virtual ~Shape() = default; virtual double area() const = 0; };
template <int N> struct Polygon : Shape {
    std::vector<double> sides;
    explicit Polygon(double x) : sides(N, x) {}
    double area() const override { return std::accumulate(sides.begin(), sides.end(), 0.0); }
};
int main(int argc, char **argv) {
    std::map<std::string, std::vector<int>> words;
    std::unordered_map<int, std::string> names;
    std::regex pattern(argc > 1 ? argv[1] : "([a-z]+)([0-9]*)");
    std::ostringstream out;
    for (int i = 0; i < 1000; i++) {
        std::string text = "word" + std::to_string(i % 37);
        std::smatch match;
        if (std::regex_match(text, match, pattern)) words[match[1]].push_back(i);
        names.emplace(i, text);
    }
    std::vector<std::unique_ptr<Shape>> shapes;
    shapes.push_back(std::make_unique<Polygon<3>>(argc));
    shapes.push_back(std::make_unique<Polygon<4>>(argc));
    std::stable_sort(shapes.begin(), shapes.end(), [](auto &a, auto &b) { return a->area() < b->area(); });
    for (auto &[name, numbers] : words) out << name << numbers.size() << shapes.front()->area();
    std::cout << out.str().size() << names.size() << std::endl;
}

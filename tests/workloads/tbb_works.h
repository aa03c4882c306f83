/* SPDX-License-Identifier: Apache-2.0 */
/* The work functions of tbb_truth, for both languages: included with WORK(name) defined. */
WORK(serial_work)
WORK(balanced_work)
WORK(skewed_long)
WORK(skewed_short)
WORK(dynamic_work)
WORK(group_parent)
WORK(group_child)
WORK(nested_outer_work)
WORK(nested_work)
WORK(source_work)
WORK(stage_work)

"""Every kind of fault that a set of images can have, how bad it is, and one such fault."""

from typing import Literal, NamedTuple

Severity = Literal["error", "warning"]

KINDS: dict[str, tuple[Severity, str]] = {
    # files
    "unreadable": ("error", "the image is damaged, or the file cannot be opened"),
    "truncated": ("error", "the file ends before the picture does"),
    "zero_bytes": ("error", "an empty file"),
    "not_an_image": ("error", "something else under an image's name"),
    "decompression_bomb": ("error", "the header claims more pixels than Pillow agrees to decode"),
    "missing_file": ("error", "the table names a file that is not there"),
    "broken_link": ("error", "a link that leads nowhere, or in a circle"),
    "unreadable_folder": ("error", "a folder that cannot be listed"),
    "wrong_extension": ("warning", "a readable image whose name promises another format"),
    "unsupported_file": ("warning", "a file in a class folder that is not read"),
    "blank_image": ("warning", "one colour all over"),
    # folders and tables
    "stray_image": ("warning", "an image outside every class folder; not read"),
    "stray_folder": ("warning", "a folder beside the split folders; not read"),
    "hidden_folder": ("warning", "a hidden folder where class folders are; not read"),
    "empty_split": ("error", "nothing to train on: no train folder with class folders in it, or no row of train"),
    "two_split_folders": ("error", "two folders for the same split"),
    "split_without_classes": ("warning", "a split folder whose images have no labels; not read"),
    "empty_label": ("error", "a row of the table without a label"),
    "unknown_split": ("error", "a split the application does not know"),
    "duplicate_row": ("error", "the same file twice in the table"),
    "row_in_two_splits": ("error", "the same file in two splits of the table"),
    "row_with_two_labels": ("error", "the same file under two labels in the table"),
    "ragged_row": ("error", "a row with more cells than the header: a comma within a cell needs quotes around it"),
    "outside_archive": ("error", "a table out of an archive names a file outside the archive"),
    "outside_root": ("warning", "the table names a file outside its own folder: it does not move with it"),
    # classes
    "regression": ("error", "labels that are measurements, not classes: regression"),
    "multi_label": ("warning", "several labels in one: multi-label"),
    "folder_of_folders": ("warning", "a class folder that holds folders of images, but no image"),
    "empty_class": ("error", "a class without one training image"),
    "one_class": ("error", "there is only one class"),
    "class_not_in_train": ("error", "a class of val or test that is never trained"),
    "class_names_differ_in_spaces": ("error", "two classes whose names look the same"),
    "class_names_differ_in_case": ("warning", "two classes whose names differ in upper and lower case only"),
    "class_missing": ("warning", "a class that val or test does not have"),
    "few_images": ("warning", "a class with very few training images"),
    "imbalance": ("warning", "the largest class has many times the images of the smallest"),
    # pictures that are there more than once
    "duplicate_across_splits": ("error", "the same file in two splits: the score would be too good"),
    "duplicate_with_two_labels": ("error", "the same file under two labels"),
    "duplicate": ("warning", "the same file twice in one split"),
    "near_duplicate_across_splits": ("error", "the same picture in two splits: the score would be too good"),
    "near_duplicate_with_two_labels": ("warning", "nearly the same picture under two labels"),
    "near_duplicate": ("warning", "nearly the same picture twice in one split"),
}
"""Every kind of finding: its severity and what it means."""


class Problem(NamedTuple):
    """One fault. `kind` is a key of KINDS; `other` is the second file of a pair."""

    kind: str
    path: str
    split: str = ""
    label: str = ""
    other: str = ""
    detail: str = ""

    @property
    def severity(self) -> Severity:
        return KINDS[self.kind][0]

    def __str__(self) -> str:
        return f"{self.path!r}: {KINDS[self.kind][1]}" + (f" ({self.detail})" if self.detail else "")

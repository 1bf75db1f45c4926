"""Why ratios of `bench/classics.py` differ from the published ones: a line per method, or per network and method."""

from __future__ import annotations

from collections.abc import Mapping

SQRT, GREEDY, REVOLVE, LP = "chen-sqrt AP", "chen-greedy AP", "revolve", "checkmate-lp"
MOBILENET, VGG19 = "mobilenet_bs512_224_train", "vgg19_bs256_224_train"
UNET, RESNET = "unet_vgg_bs32_416x608_train", "resnet50_bs256_224_train"

NOTES: Mapping[tuple[str, str], str] = {
    ("", SQRT): "One schedule for all budgets: what differs is the optimum, that is, which budgets the mean is over.",
    (VGG19, SQRT): "One schedule, which fits at 0.9 only, where the optimum is nearly the baseline.",
    (UNET, SQRT): "One schedule, of few articulation points, which fits at 0.9 only.",
    ("", GREEDY): "The best of up to 300 segment sizes for each budget; a coarser sweep repeats more.",
    (VGG19, GREEDY): "The best of up to 300 segment sizes for each budget: with 10 sizes it is 1.27 instead.",
    (UNET, GREEDY): "No set of articulation points fits below 0.8, so that the mean is over two budgets.",
    (RESNET, GREEDY): "The best of up to 300 segment sizes; down to half of the peak it never needs to repeat much.",
    ("", REVOLVE): "The best number of checkpoints for each budget, and only what a later step reads is repeated.",
    (
        MOBILENET,
        REVOLVE,
    ): "The best number of checkpoints for each budget; with one (`checkpoints=1`) the ratio is 7.3.",
    (
        "",
        LP,
    ): "The best of many roundings, each within the budget by the judge, then pruned, which the paper does not do.",
}

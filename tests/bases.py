"""Shipped configurations that other shipped files go on top of."""

from lightning_cgrpo.settings.configuration import PACKAGED

QWEN = PACKAGED / "paper" / "navsim_qwen2_5_vl_3b.yaml"
OVER = {
    "paper/gsm8k_ppo_lagrangian.yaml": PACKAGED / "paper" / "gsm8k_qwen2_5_1.5b.yaml",
    "paper/navsim_ppo_lagrangian.yaml": QWEN,
    "paper/navsim_declared.yaml": QWEN,
    "paper/navsim_lora.yaml": QWEN,
    "paper/navsim_internvl3_2b.yaml": QWEN,
}


def base_of(path):
    """The file that a shipped configuration goes on top of, an ablation on that of its folder's name; None if none."""
    if "ablations" in path.parts:
        return PACKAGED / f"{path.parent.name}.yaml"
    return OVER.get(str(path.relative_to(PACKAGED)))

"""Backbones by name: what a name means, which files it stands for, and what a run records of them."""

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import domainwise as dw
from commands import Command
from domainwise.cli import doctor
from domainwise.core.errors import UserError
from domainwise.nets import NETWORKS, hub
from domainwise.nets.loading import start_from
from domainwise.nets.weights import locate, planned
from domainwise.protocol.network_names import HubName
from hub_models import MEAN, SIZE, STD, save_model

Backbones = Callable[[str], Path]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the hub, which cannot be reached."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.snapshot_download", _unreachable)
    return tmp_path / "hub"


def _unreachable(*_: object, **__: object) -> None:
    raise ConnectionError("no route to the hub\nsecond line")


def snapshot(cache: Path, repository: str, commit: str, folder: Path, branch: str = "main") -> Path:
    """Puts a folder into the cache as the hub's own library does."""
    place = cache / f"models--{repository.replace('/', '--')}"
    (place / "refs").mkdir(parents=True, exist_ok=True)
    (place / "refs" / branch).write_text(commit)
    shutil.copytree(folder, place / "snapshots" / commit)
    return place / "snapshots" / commit


def plan(network: str, **options: object) -> dw.Run:
    return dw.plan("BackgroundDigits", "ERM", ["scene1"], network=network, steps=2, **options)


def test_names_have_a_library_a_source_a_revision_and_a_pooling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert HubName.parse("hf:facebook/dinov2-base@v1.0+both") == HubName("hf", "facebook/dinov2-base", "v1.0", "both")
    assert (
        HubName.parse("timm:vit_base_patch16_224.augreg_in21k").repository == "timm/vit_base_patch16_224.augreg_in21k"
    )
    monkeypatch.chdir(tmp_path)
    mine = HubName.parse("hf:./my+model+mean")
    assert (mine.folder, mine.pooling, mine.title) == (tmp_path / "my+model", "mean", "hf:my+model+mean")
    assert HubName.parse(str(mine)) == mine
    for wrong in (
        "hf:",
        "hf:a/b/c",
        "hf:a/b+maximum",
        "hf:x y/z",
        "hf:./a\0b",
        "hf:a@../b",
        "hf:a@",
        "hf:" + 200 * "a",
    ):
        with pytest.raises(UserError):
            HubName.parse(wrong)


def test_two_revisions_are_two_runs_and_the_branch_may_move(cache: Path, backbone: Backbones, tmp_path: Path) -> None:
    first, second = "a" * 40, "b" * 40
    snapshot(cache, "org/tiny", first, backbone("vit"))
    before = plan("hf:org/tiny")
    assert before.weights == f"hf:org/tiny@{first}#{first[:16]}"
    snapshot(cache, "org/tiny", second, save_model("vit", tmp_path / "new", seed=1))
    after = plan("hf:org/tiny")
    assert after.weights == f"hf:org/tiny@{second}#{second[:16]}" and after.id != before.id
    assert plan(f"hf:org/tiny@{first[:8]}").weights == before.weights
    assert locate(before.weights).name == first, "a run finds the commit it was planned with"


def test_a_folder_counts_by_its_content_and_not_by_its_place(backbone: Backbones, tmp_path: Path) -> None:
    here, there = (shutil.copytree(backbone("vit"), tmp_path / place / "vit") for place in ("here", "there"))
    assert plan(f"hf:{here}").id == plan(f"hf:{there}").id != plan(f"hf:{here}+mean").id
    known = plan(f"hf:{there}")
    save_model("vit", there, seed=1)
    assert plan(f"hf:{there}").id != known.id
    with pytest.raises(UserError, match="is not the folder the run was planned with"):
        locate(known.weights)
    (here / "config.json").write_text((here / "config.json").read_text().replace("gelu", "relu"))
    assert plan(f"hf:{here}").id != known.id, "the architecture counts, too"


@pytest.mark.parametrize(
    "processor, facts",
    [
        ({"size": 20, "image_mean": MEAN, "image_std": STD}, hub.ImageFacts(20, tuple(MEAN), tuple(STD))),
        ({"size": {"shortest_edge": 30}, "crop_size": {"height": 24, "width": 24}}, hub.ImageFacts(24)),
        ({"size": {"shortest_edge": 30}, "crop_size": 24, "do_center_crop": False}, hub.ImageFacts(30)),
        ({"do_normalize": False}, hub.ImageFacts(SIZE, (0.0,) * 3, (1.0,) * 3)),
        ({"image_processor": {"size": {"height": 20, "width": 20}}}, hub.ImageFacts(20)),
        (None, hub.ImageFacts(SIZE)),
    ],
)
def test_size_mean_and_std_are_those_of_the_processor(
    processor: dict[str, object] | None, facts: hub.ImageFacts, backbone: Backbones, tmp_path: Path
) -> None:
    folder = shutil.copytree(backbone("vit"), tmp_path / "vit")
    (folder / "preprocessor_config.json").unlink()
    if processor is not None:
        (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    assert hub.image_facts(f"hf:{folder}") == facts


@pytest.mark.parametrize(
    "processor",
    [{"image_mean": [0.5]}, {"image_mean": "x"}, {"image_std": [0.5, 0, 0.5]}, {"image_std": [0.5, "a", 1]}],
)
def test_a_normalisation_that_cannot_be_is_blamed_on_its_file(
    processor: dict[str, object], backbone: Backbones, tmp_path: Path, domainwise: Command
) -> None:
    folder = shutil.copytree(backbone("vit"), tmp_path / "vit")
    (folder / "preprocessor_config.json").write_text(json.dumps({"size": SIZE, **processor}))
    tried = domainwise("train", "--network", f"hf:{folder}", "--steps", 1)
    (name,) = processor
    assert tried.is_one_line_error and f"preprocessor_config.json: {name} is " in tried.err


def test_timm_names_its_images_in_one_file(tmp_path: Path) -> None:
    images = {"input_size": [3, 20, 20], "mean": MEAN, "std": STD}
    (tmp_path / "config.json").write_text(json.dumps({"architecture": "vit_tiny", "pretrained_cfg": images}))
    save_file({"w": torch.zeros(1)}, tmp_path / "model.safetensors")
    assert hub.image_facts(f"timm:{tmp_path}") == hub.ImageFacts(20, tuple(MEAN), tuple(STD))


def test_only_safetensors_are_read_and_no_code_is_executed(backbone: Backbones, tmp_path: Path) -> None:
    folder = shutil.copytree(backbone("vit"), tmp_path / "vit")
    config = json.loads((folder / "config.json").read_text())
    own = config | {"model_type": "mine", "auto_map": {"AutoConfig": "mine.Config", "AutoModel": "mine.Model"}}
    (folder / "config.json").write_text(json.dumps(own))
    (folder / "mine.py").write_text(f"import pathlib; pathlib.Path({str(tmp_path / 'ran')!r}).touch()")
    with pytest.raises(UserError, match="no other code is executed"):
        NETWORKS[f"hf:{folder}"]((3, SIZE, SIZE))
    assert not (tmp_path / "ran").exists()
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(UserError, match=r"no model\.safetensors"):
        planned(f"hf:{folder}")


@pytest.mark.parametrize("name", ["hf:./nowhere", "hf:/dev/null", "hf:~nobody/x", f"hf:./{300 * 'a'}", "hf:./a\nb"])
def test_folders_that_hold_no_model_are_one_line(name: str, domainwise: Command) -> None:
    tried = domainwise("train", "--network", name, "--steps", 1)
    assert tried.is_one_line_error and "--network" in tried.err, tried.err


def test_a_model_of_texts_is_refused(tmp_path: Path) -> None:
    from transformers import BertConfig, BertModel

    small = {
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "intermediate_size": 8,
        "vocab_size": 9,
    }
    BertModel(BertConfig(**small)).save_pretrained(tmp_path)
    with pytest.raises(UserError, match="does not read images"):
        NETWORKS[f"hf:{tmp_path}"]((3, SIZE, SIZE))


def test_lists_show_what_the_cache_holds(cache: Path, backbone: Backbones, domainwise: Command) -> None:
    found = snapshot(cache, "org/tiny", "c" * 40, backbone("vit"))
    (found / "README.md").write_text("---\nlicense: apache-2.0\n---\n# Tiny\n")
    listed = json.loads(domainwise("list", "--networks", "hf:*", "--json").out)["networks"]
    assert set(listed) == {"hf:org/tiny"}
    assert "hf:NAME" in domainwise("list", "--networks").out
    fact = json.loads(domainwise("weights", "list", "--json").out)["hub"]["hf:org/tiny"]
    assert (fact["commit"], fact["licence"]) == ("c" * 40, "apache-2.0") and fact["bytes"] > 1000
    assert "org/tiny" in domainwise("weights", "list").out


def test_what_is_not_there_is_fetched_or_said_in_one_line(
    cache: Path, backbone: Backbones, domainwise: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = domainwise("weights", "get", "hf:org/tiny")
    assert missing.is_one_line_error and "no route to the hub second line" in missing.err
    fetched: dict[str, object] = {}

    def fetch(repository: str, **how: object) -> str:
        fetched.update(how)
        return str(snapshot(cache, repository, "d" * 40, backbone("vit")))

    monkeypatch.setattr("huggingface_hub.snapshot_download", fetch)
    assert domainwise("weights", "get", "hf:org/tiny@v2").status == 0
    assert fetched["revision"] == "v2" and fetched["allow_patterns"] == list(hub.WANTED)
    assert not [pattern for pattern in hub.WANTED if pattern.endswith((".bin", ".py", ".pt"))]
    monkeypatch.setattr("huggingface_hub.snapshot_download", _unreachable)
    assert planned("hf:org/tiny").startswith("hf:org/tiny@ddd"), "from now on from the cache"


def test_a_model_in_parts_is_there_when_all_parts_are(
    cache: Path, backbone: Backbones, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So an interrupted download continues, and a folder without a part is refused by name."""
    whole = backbone("vit")
    tensors = load_file(whole / "model.safetensors")
    found = snapshot(cache, "org/tiny", "e" * 40, whole)
    (found / "model.safetensors").unlink()
    names = sorted(tensors)
    parts = [found / f"model-{number:05}-of-00003.safetensors" for number in (1, 2, 3)]
    for number in (0, 2):
        save_file({name: tensors[name] for name in names[number::3]}, parts[number])
    monkeypatch.chdir(tmp_path)
    shutil.copytree(found, "copy")
    assert hub.cached(HubName.parse("hf:org/tiny")) is None and "hf:org/tiny" not in hub.known_names("*")
    with pytest.raises(UserError, match=r"there is no model-00002-of-00003\.safetensors in .*: fetch or copy it again"):
        planned("hf:./copy")

    def fetch(repository: str, **_: object) -> str:
        save_file({name: tensors[name] for name in names[1::3]}, parts[1])
        return str(found)

    monkeypatch.setattr("huggingface_hub.snapshot_download", fetch)
    reference = planned("hf:org/tiny")
    assert hub.cached(HubName.parse("hf:org/tiny")) == found and "hf:org/tiny" in hub.known_names("*")
    net = NETWORKS["hf:org/tiny"]((3, SIZE, SIZE))
    start_from(net, reference)
    assert torch.equal(net.get_parameter("model.layernorm.weight"), tensors["layernorm.weight"])


@pytest.mark.parametrize("library, package", [("hf", "transformers"), ("timm", "timm")])
def test_a_missing_library_is_one_line(
    library: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    (tmp_path / "config.json").write_text('{"model_type": "vit", "architecture": "vit"}')
    save_file({"w": torch.zeros(1)}, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match=rf"pip install 'domainwise\[{library}\]'"):
        NETWORKS[f"{library}:{tmp_path}"]((3, SIZE, SIZE))


@pytest.mark.parametrize(("library", "package", "way"), [("hf", "transformers", ", or none"), ("timm", "timm", "")])
def test_a_library_that_cannot_be_imported_is_not_called_missing(
    library: str, package: str, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where torchvision does not fit torch; transformers hides the cause behind an error of its own."""
    (tmp_path / package).mkdir()
    lines = (
        "def __getattr__(name):",
        "    try:",
        "        raise RuntimeError('operator torchvision::nms does not exist')",
        "    except RuntimeError as error:",
        "        raise ModuleNotFoundError('Could not import module') from error",
        "__getattr__('x')" if package == "timm" else "",
    )
    (tmp_path / package / "__init__.py").write_text("\n".join(lines))
    monkeypatch.setitem(sys.modules, package, None)
    del sys.modules[package]
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "vit", "architecture": "vit"}')
    save_file({"w": torch.zeros(1)}, tmp_path / "model.safetensors")
    with pytest.raises(UserError) as error:
        NETWORKS[f"{library}:{tmp_path}"]((3, SIZE, SIZE))
    cause = f"{package} cannot be imported (operator torchvision::nms does not exist)"
    told = f"{cause}: install a torchvision that fits torch{way}"
    assert str(error.value) == told
    monkeypatch.setattr("importlib.metadata.version", lambda _: "1.0")
    (finding,) = [one for one in doctor.packages() if one.name == package]
    assert finding.good is False and finding.words == told

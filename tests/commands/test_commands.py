"""The other commands' output, and what every command promises."""

from __future__ import annotations

import csv
import gzip
import json
import re
import subprocess
import sys
from collections.abc import Callable
from io import StringIO
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result
from wavecast import __version__
from wavecast.__main__ import COMMAND_GROUPS, COMMANDS, wavecast
from wavecast.analyzer.asking.choice import complete_gpu_names, read_gpu_names
from wavecast.formats.files.open import load_trace
from wavecast.specs.catalog import load_catalog

Run = Callable[..., Result]
CheckGolden = Callable[[str, str], None]
SLOW_MODULES = {"torch", "networkx", "numpy", "rich", "orjson", "msgspec", "tomllib", "hypothesis"}
OWN_GPU = """
[[gpu]]
name = "H100 with twice the bandwidth"
based_on = "H100 SXM5 80GB"
memory = { bandwidth_gb_per_s = 6704 }
"""


def command(name: str) -> click.Command:
    found = wavecast.get_command(click.Context(wavecast), name)
    assert found is not None
    return found


@pytest.fixture
def own_gpu_file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text(OWN_GPU, encoding="utf-8")
    return path


@pytest.mark.parametrize("width", [80, None])
def test_show(width: int | None, run: Run, trace_file: Path, check_golden: CheckGolden) -> None:
    result = run("show", trace_file, **({"COLUMNS": width} if width else {}))
    assert result.exit_code == 0
    check_golden(f"show_{width or 'pipe'}.txt", result.stdout)


def test_show_as_json(run: Run, trace_file: Path, check_golden: CheckGolden) -> None:
    text = run("show", trace_file, "--format", "json", "--top", 1).stdout
    check_golden("show.json", text)
    document = json.loads(text)
    assert document["format"] == "wavecast.overview"
    assert document["gpu_busy_ns"] == 120_000
    assert len(document["ops"]) == len(document["kernels"]) == 1


def test_gpu_time_in_show_adds_up(run: Run, trace_file: Path) -> None:
    document = json.loads(run("show", trace_file, "--format", "json", "--top", 99).stdout)
    for lines in ("phases", "kernels", "ops"):
        assert sum(line["gpu_ns"] for line in document[lines]) == pytest.approx(document["gpu_busy_ns"])
        assert sum(line["share"] for line in document[lines]) == pytest.approx(1.0)


@pytest.mark.parametrize("name", ["out.json", "out.json.gz"])
def test_convert_keeps_the_trace(name: str, run: Run, trace_file: Path, tmp_path: Path) -> None:
    target = tmp_path / name
    result = run("convert", trace_file, target)
    assert result.exit_code == 0, result.output
    assert result.stdout.count("\n") == 1
    for part in (name, "2 iterations, 6 ops, 6 kernels", "2 kernels without op"):
        assert part in result.stdout
    assert load_trace(target) == load_trace(trace_file)


def test_standard_input_is_a_trace(run: Run, trace_file: Path, trace_bytes: bytes) -> None:
    expected = run("analyze", trace_file, "--format", "json").stdout
    assert run("analyze", "-", "--format", "json", stdin=trace_bytes).stdout == expected
    assert run("analyze", "-", "--format", "json", stdin=gzip.compress(trace_bytes)).stdout == expected


def test_analyze_ranks_every_catalogued_gpu(run: Run, trace_file: Path) -> None:
    document = json.loads(run("analyze", trace_file, "--format", "json").stdout)
    names = [row["gpu"] for row in document["predictions"]]
    assert set(names) == {gpu.name for gpu in load_catalog().gpus if not gpu.is_package}
    assert len(names) >= 100
    times = [float(f"{row['iteration_ns']:.4g}") for row in document["predictions"]]
    assert times == sorted(times)
    assert [row["gpu"] for row in document["predictions"] if row["is_source"]] == ["A100 SXM4 80GB"]
    assert all(sum(row["methods"].values()) == pytest.approx(1.0) for row in document["predictions"])


def test_to_and_from_choose_the_gpus(run: Run, trace_file: Path) -> None:
    document = json.loads(
        run(
            "analyze", trace_file, "--to", "mi300x", "--to", "4090", "--from", "A100 PCIe 80GB", "--format", "json"
        ).stdout
    )
    assert document["source"]["gpu"] == "A100 PCIe 80GB"
    assert {row["gpu"] for row in document["predictions"]} >= {"Instinct MI300X", "GeForce RTX 4090"}
    assert len(document["predictions"]) <= 3


def test_naming_a_gpu_twice_predicts_it_once(run: Run, trace_file: Path) -> None:
    document = json.loads(run("analyze", trace_file, "--to", "mi300x", "--to", "MI300X", "--format", "json").stdout)
    assert [row["gpu"] for row in document["predictions"]].count("Instinct MI300X") == 1


def test_top_limits_the_ops(run: Run, trace_file: Path) -> None:
    assert len(json.loads(run("analyze", trace_file, "--ops", "--format", "json").stdout)["ops"]) == 2
    assert len(json.loads(run("analyze", trace_file, "--ops", "--top", 1, "--format", "json").stdout)["ops"]) == 1
    assert "Ops on" in run("analyze", trace_file).stdout
    assert "Ops on" not in run("analyze", trace_file, "--top", 0).stdout


def test_own_gpus_take_part(run: Run, trace_file: Path, own_gpu_file: Path) -> None:
    options = ("--gpu-file", own_gpu_file, "--format", "json")
    document = json.loads(run("analyze", trace_file, "--to", "h100 with twice", *options).stdout)
    assert "H100 with twice the bandwidth" in [row["gpu"] for row in document["predictions"]]
    shown = json.loads(run("catalog", "H100 with twice", *options).stdout)["gpus"][0]
    assert shown["memory_bandwidth_bytes_per_s"] == 6704e9


def test_gpus_lists_the_catalogue(run: Run) -> None:
    names = [gpu.name for gpu in load_catalog().gpus]
    table = run("catalog").stdout
    assert all(name in table for name in names)
    assert [gpu["name"] for gpu in json.loads(run("catalog", "--format", "json").stdout)["gpus"]] == names
    assert [row["name"] for row in csv.DictReader(StringIO(run("catalog", "--format", "csv").stdout))] == names


def test_gpus_names_one(run: Run) -> None:
    text = run("catalog", "h100 sxm").stdout
    assert text.startswith("H100 SXM5 80GB\n")
    assert "Sources" in text


def test_completion_offers_gpu_names() -> None:
    context = click.Context(command("analyze"))
    found = complete_gpu_names(context, command("analyze").params[1], "mi300")
    assert "Instinct MI300X" in found
    assert all("mi300" in name.casefold() for name in found)


def test_completion_offers_clouds() -> None:
    cloud = next(item for item in command("analyze").params if item.name == "cloud")
    assert isinstance(cloud, click.Option)
    found = {item.value for item in cloud.shell_complete(click.Context(wavecast), "a")}
    assert found == {"AWS", "Akash", "Azure"}


def test_completion_offers_the_slices_of_a_gpu() -> None:
    found = complete_gpu_names(click.Context(command("analyze")), command("analyze").params[1], "H200 SXM/3")
    assert found == ["H200 SXM/3g.71gb"]


def test_what_nobody_measured_is_called_untested(run: Run, root_dir: Path) -> None:
    trace = root_dir / "samples" / "gpt2_small-inference-bf16-b4-shapes.json.gz"
    line = ("analyze", trace, "--to", "7900 XTX", "--to", "H100 SXM5", "--to", "A100 SXM4 80GB/3g.40gb")
    table = run(*line).stdout
    assert "Radeon RX 7900 XTX, untested" in table
    assert "A100 SXM4 80GB, 3g.40gb " in table
    assert "Untested: no GPU of the generation RDNA3 was measured." in table
    rows = {row["gpu"]: row for row in json.loads(run(*line, "--format", "json").stdout)["predictions"]}
    assert rows["Radeon RX 7900 XTX"]["untested"] == "no GPU of the generation RDNA3 was measured"
    assert "untested" not in rows["H100 SXM5 80GB"]
    ratios = {name: row["iteration_high_ns"] / row["iteration_ns"] for name, row in rows.items()}
    assert ratios["Radeon RX 7900 XTX"] - 1.0 > 1.2 * (ratios["A100 SXM4 80GB, 3g.40gb"] - 1.0)


def test_a_source_of_no_times_is_said_to_say_nothing(run: Run, root_dir: Path) -> None:
    trace = root_dir / "samples" / "gpt2_small-inference-bf16-b4-shapes.json.gz"
    asked = ("analyze", trace, "--to", "L40S")
    said = "Warning: --from H100 SXM5 80GB says nothing here: no time was recorded on it"
    assert said in run(*asked, "--from", "H100 SXM5").output
    assert "says nothing" not in run(*asked).output


def subcommands(found: click.Command) -> dict[str, click.Command]:
    return dict(found.commands) if isinstance(found, click.Group) else {}


def test_every_subcommand_is_described_on_the_page_of_its_group(root_dir: Path) -> None:
    for group in COMMANDS:
        for name, found in subcommands(command(group)).items():
            page = (root_dir / "docs" / "reference" / f"{group}.md").read_text(encoding="utf-8")
            assert f"`{group} {name} " in page
            options = {text for item in found.params for text in item.opts if text.startswith("--")}
            assert all(text in page for text in options), (name, options)
            assert found.help
            assert found.short_help


@pytest.fixture(scope="module")
def sections(root_dir: Path) -> dict[str, str]:
    """What docs/reference/cli.md says of each command."""
    documented = (root_dir / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
    _, *parts = re.split(r"^## `(?:wavecast )?([a-z]+)`.*$", documented, flags=re.MULTILINE)
    return {name: text.split("\n## ")[0] for name, text in zip(parts[::2], parts[1::2], strict=True)}


def test_every_command_has_a_section_and_a_row_of_the_overview(sections: dict[str, str], root_dir: Path) -> None:
    assert set(sections) == set(COMMANDS)
    overview = (root_dir / "docs" / "reference" / "cli.md").read_text(encoding="utf-8").split("\n## ")[0]
    assert set(re.findall(r"^\| .*`wavecast ([a-z]+)", overview, re.MULTILINE)) == set(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_option_has_help_and_is_documented(name: str, run: Run, sections: dict[str, str]) -> None:
    assert command(name).help
    options = [item for item in command(name).params if isinstance(item, click.Option)]
    assert all(option.help for option in options)
    documented = set(re.findall(r"(?<=[`, ])(-[a-z]|--[a-z-]+)(?=[`, ])", sections[name]))
    visible = {text for option in options if not option.hidden for text in option.opts}
    assert visible - documented <= {"--version"}
    assert run(name, "-h").stdout == run(name, "--help").stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_help_fits_80_columns(name: str) -> None:
    found = command(name)
    words = [[name], *([name, item] for item in (found.commands if isinstance(found, click.Group) else ()))]
    for asked in words:
        lines = CliRunner().invoke(wavecast, [*asked, "--help"], terminal_width=80).output.splitlines()
        assert [line for line in lines if len(line) > 80] == []


def test_options_that_are_spoken_of_exist(root_dir: Path) -> None:
    page = (root_dir / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
    documented = re.sub(r"^```.*?^```", "", page, flags=re.MULTILINE | re.DOTALL)
    commands = [item for name in COMMANDS for item in (command(name), *subcommands(command(name)).values())]
    known = {option for item in commands for parameter in item.params for option in parameter.opts}
    mentioned = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", documented))
    assert mentioned - known <= {"--version", "--help"}


@pytest.mark.parametrize("words", [(), ("archive",)])
def test_a_group_without_arguments_prints_its_whole_help(words: tuple[str, ...]) -> None:
    result, asked = (CliRunner().invoke(wavecast, [*words, *more]) for more in ((), ("--help",)))
    assert result.output == asked.stdout
    assert "Error" not in result.output


def test_help_lists_every_command_once_with_what_it_does() -> None:
    text = CliRunner().invoke(wavecast, ["--help"], terminal_width=80).output
    assert re.findall(r"^  ([a-z]+) +[A-Z].*\.$", text, re.MULTILINE) == list(COMMANDS)
    assert re.findall(r"^(\w.*):$", text, re.MULTILINE) == ["Options", *COMMAND_GROUPS]


def test_version(run: Run) -> None:
    assert run("--version").stdout == f"wavecast {__version__}\n"
    assert run("analyze", "--version").stdout == f"wavecast {__version__}\n"


@pytest.mark.parametrize("arguments", ["['wavecast', '--help']", "['wavecast', 'analyze', '--help']"])
def test_help_loads_nothing_slow(arguments: str) -> None:
    code = (
        f"import sys; sys.argv = {arguments}\n"
        "from wavecast.__main__ import main\n"
        "try: main()\n"
        "except SystemExit: print(*sys.modules, file=sys.stderr)"
    )
    result = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert "Usage:" in result.stdout
    assert SLOW_MODULES & set(result.stderr.split()) == set()


def test_a_reader_that_leaves_early_is_no_error(trace_file: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "wavecast", "catalog", "--format", "json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.read(10)
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    process.wait()


def test_a_terminal_with_few_characters_gets_plain_ones(trace_file: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "wavecast", "show", str(trace_file)],
        capture_output=True,
        env={"PYTHONIOENCODING": "ascii"},
        check=True,
    )
    assert result.stdout.isascii()
    assert b"400.0 us" in result.stdout


def test_a_cloud_instance_means_one_of_its_gpus(run: Run, trace_file: Path) -> None:
    result = run("analyze", trace_file, "--to", "g5.12xlarge", "--format", "json")
    document = json.loads(result.stdout)
    assert "A10G" in [row["gpu"] for row in document["predictions"]]
    assert (
        "AWS g5.12xlarge has 4 A10G, linked by PCIe (no NVLink): what is shown is for one of them"
        in document["warnings"]
    )


def test_gpus_shows_all_that_a_name_means(run: Run) -> None:
    assert [gpu["name"] for gpu in json.loads(run("catalog", "h100", "--format", "json").stdout)["gpus"]] == [
        "H100 SXM5 80GB",
        "H100 PCIe 80GB",
        "H100 NVL 94GB",
    ]
    table = run("catalog", "h100").stdout
    assert "H100 NVL 94GB" in table
    assert "A100" not in table
    text = run("catalog", "gpus", "p4d.24xlarge").stdout
    assert text.startswith("AWS p4d.24xlarge has 8 A100 SXM4 40GB, linked by NVLink3 NVSwitch")
    assert "\nA100 SXM4 40GB\n" in text


@pytest.mark.parametrize(
    ("name", "kind", "found"),
    [
        ("H100 SXM5 80GB", "gpus", "H100 SXM5 80GB"),
        ("A100 SXM4 80GB/3g.40gb", "gpus", "A100 SXM4 80GB, 3g.40gb"),
        ("g5.xlarge", "gpus", "A10G"),
        ("DGX/HGX H100", "nodes", "DGX/HGX H100"),
        ("p4d.24xlarge", "nodes", "AWS p4d.24xlarge"),
        ("h100-node", "hosts", "h100-node"),
        ("Xeon 8275CL", "hosts", "xeon-8275cl"),
    ],
)
def test_the_catalog_finds_what_a_name_means_whatever_it_is(name: str, kind: str, found: str, run: Run) -> None:
    document = json.loads(run("catalog", name, "--format", "json").stdout)
    assert [item["name"] for item in document[kind]] == [found]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("a100", "sxm"), "expected gpus, nodes, hosts before NAME"),
        (("gpus", "--nccl-tests", "x"), "--nccl-tests says nothing about gpus"),
        (("hosts", "--price", "H100=1"), "--price says nothing about hosts"),
        (("dgx",), "may mean several nodes"),
        (("--nccl-tests", "x"), "name it"),
        (("hosts", "nobody"), "no host is called so"),
        (("gpus", "nobody"), "no GPU of the catalogue is called 'nobody'; see `wavecast catalog` for all of them\n"),
        (("nobody",), "no node or host is called so either ('wavecast catalog nodes' and '… hosts' list them)"),
    ],
)
def test_what_the_catalog_refuses(words: tuple[str, ...], said: str, run: Run) -> None:
    result = run("catalog", *words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr


def test_completion_knows_the_kinds_and_the_names_of_each() -> None:
    kind, name = command("catalog").params[:2]
    for typed, expected in (("no", {"nodes"}), ("mi300x", {"Instinct MI300X"})):
        found = {item.value for item in kind.shell_complete(click.Context(command("catalog")), typed)}
        assert expected <= found
    for chosen, typed, only in (("nodes", "dgx-2", "DGX-2"), ("hosts", "8275", "xeon-8275cl")):
        context = click.Context(command("catalog"))
        context.params["kind"] = chosen
        assert [item.value for item in name.shell_complete(context, typed)] == [only]


@pytest.mark.parametrize("typed", ["x", "", "?!", "RTX 5070 SUPER", "mi300", "g6f.xlarge", "g5.3xlarge", "p2.xlarge"])
@pytest.mark.parametrize("command_line", [("catalog",), ("analyze", "TRACE", "--to"), ("analyze", "TRACE", "--from")])
def test_a_name_that_means_no_gpu_is_refused_in_one_line(
    typed: str, command_line: tuple[str, ...], run: Run, trace_file: Path
) -> None:
    result = run(*(str(trace_file) if word == "TRACE" else word for word in command_line), typed)
    assert result.exit_code == 2
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("size", [10**6, 10**9, 2**63 - 1, 10**40])
def test_a_batch_beyond_every_gpu_is_refused_in_one_line(size: int, run: Run, root_dir: Path) -> None:
    trace = root_dir / "samples" / "gpt2_small-training-bf16-b4-shapes.json.gz"
    result = run("analyze", trace, "--batch", size)
    assert result.exit_code == 2
    assert ("at most 64 bits" if size >= 2**63 else "more than any GPU holds") in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "option", "typed", "expected"),
    [
        ("analyze", "price", "l40s", ["L40S="]),
        ("analyze", "observed", "h200 n", ["H200 NVL 141GB="]),
        ("sweep", "vary", "memory.b", ["memory.bandwidth="]),
        ("sweep", "vary", "batc", ["batch="]),
        ("analyze", "price", "L40S=0.7", []),
        ("sweep", "vary", "batch=1", []),
    ],
)
def test_completion_offers_names_with_the_sign_that_a_value_follows(
    name: str, option: str, typed: str, expected: list[str]
) -> None:
    found = next(item for item in command(name).params if item.name == option)
    assert isinstance(found, click.Option)
    completions = [item.value for item in found.shell_complete(click.Context(command(name)), typed)]
    assert set(expected) <= set(completions)
    assert bool(completions) == bool(expected)


@pytest.mark.parametrize(
    ("texts", "names"),
    [
        (("h100,l40s", "mi300x"), ("h100", "l40s", "mi300x")),
        (("B200 SXM (HGX, 180GB), h100,",), ("B200 SXM (HGX, 180GB)", "h100")),
        (("h100", "h100"), ("h100",)),
        (("",), ("",)),
    ],
)
def test_names_of_gpus_are_parted_by_commas_outside_of_brackets(texts: tuple[str, ...], names: tuple[str, ...]) -> None:
    to = next(item for item in command("analyze").params if item.name == "to")
    assert read_gpu_names(click.Context(command("analyze")), to, texts) == names


def test_a_command_that_is_spelt_otherwise_is_named() -> None:
    result = CliRunner().invoke(wavecast, ["anlyze"])
    assert result.exit_code == 2
    assert result.output.endswith("Error: No such command 'anlyze'; did you mean analyze?\n")
    assert "did you mean" not in CliRunner().invoke(wavecast, ["qqq"]).output

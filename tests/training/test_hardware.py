import os
import platform
import subprocess
import sys

import pytest
import torch

from stemma.device import choose_device
from stemma.training import hardware
from stemma.training.hardware import autocast, resolve_precision, retain_freed_memory, set_num_threads

CPU = torch.device("cpu")
ONEDNN_USES_BF16 = hardware._onednn_uses_bf16


@pytest.fixture(autouse=True)
def clear_cpu_detection(monkeypatch):
    monkeypatch.setattr(hardware, "_onednn_uses_bf16", lambda: True)  # unless a test replaces it
    hardware._cpu_has_bf16.cache_clear()
    yield
    hardware._cpu_has_bf16.cache_clear()


def test_an_explicit_precision_is_used():
    assert resolve_precision("fp32", CPU) == torch.float32
    assert resolve_precision("bf16", CPU) == torch.bfloat16


@pytest.mark.parametrize(("machine", "avx512", "amx", "expected"), [
    ("x86_64", True, False, torch.bfloat16),
    ("AMD64", False, True, torch.bfloat16),
    ("x86_64", False, False, torch.float32),
])
def test_auto_precision_follows_torchs_cpu_detection(monkeypatch, machine, avx512, amx, expected):
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: avx512, raising=False)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx, raising=False)
    assert resolve_precision("auto", CPU) == expected


@pytest.mark.parametrize(("machine", "line", "expected"), [
    ("x86_64", "flags\t\t: fpu avx512f avx512_bf16 sse", torch.bfloat16),
    ("x86_64", "flags\t\t: fpu amx_bf16 amx_tile", torch.bfloat16),
    ("x86_64", "flags\t\t: fpu avx512f sse", torch.float32),
    ("aarch64", "Features\t: fp asimd i8mm bf16", torch.bfloat16),
    ("aarch64", "Features\t: fp asimd", torch.float32),
    ("aarch64", "model name\t: bf16", torch.float32),
])
def test_auto_precision_falls_back_to_the_flags_in_cpuinfo(monkeypatch, tmp_path, machine, line, expected):
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(f"processor\t: 0\n{line}\n")
    flags = hardware._cpu_flags(cpuinfo)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(hardware, "_cpu_flags", lambda: flags)
    monkeypatch.delattr(torch.cpu, "_is_avx512_bf16_supported", raising=False)
    assert resolve_precision("auto", CPU) == expected


def test_auto_precision_respects_the_instruction_sets_of_onednn(monkeypatch):
    """ONEDNN_MAX_CPU_ISA=AVX2 on a processor with bf16 means that bf16 would be emulated."""
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True, raising=False)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True, raising=False)
    monkeypatch.setattr(hardware, "_onednn_uses_bf16", ONEDNN_USES_BF16)
    for supported, expected in ((True, torch.bfloat16), (False, torch.float32)):
        hardware._cpu_has_bf16.cache_clear()
        monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: supported)  # noqa: B023
        assert resolve_precision("auto", CPU) == expected


@pytest.mark.skipif(os.environ.get("ONEDNN_MAX_CPU_ISA") != "AVX2", reason="only in make test-portable")
def test_auto_precision_is_fp32_with_avx2_only(monkeypatch):
    monkeypatch.setattr(hardware, "_onednn_uses_bf16", ONEDNN_USES_BF16)
    assert resolve_precision("auto", CPU) == torch.float32


def test_a_missing_cpuinfo_gives_no_flags(tmp_path):
    assert hardware._cpu_flags(tmp_path / "none") == set()


@pytest.mark.parametrize(("capability", "expected"), [((8, 0), torch.bfloat16), ((7, 5), torch.float32)])
def test_auto_precision_on_a_gpu_follows_its_capability(monkeypatch, capability, expected):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert resolve_precision("auto", torch.device("cuda")) == expected


def test_autocast_changes_the_dtype_of_products_but_not_of_weights():
    layer = torch.nn.Linear(4, 3)
    with autocast(CPU, torch.bfloat16):
        assert layer(torch.ones(2, 4)).dtype == torch.bfloat16
    with autocast(CPU, torch.float32):
        assert layer(torch.ones(2, 4)).dtype == torch.float32
    assert layer.weight.dtype == torch.float32


def test_cuda_is_chosen_if_available(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device() == CPU
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert choose_device() == torch.device("cuda")


def test_the_number_of_threads_is_set_or_follows_the_cpu_affinity(monkeypatch):
    before = torch.get_num_threads()
    try:
        assert set_num_threads(3) == 3 == torch.get_num_threads()
        if hasattr(os, "sched_getaffinity"):
            monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 5})
            assert set_num_threads(None) == 2 == torch.get_num_threads()
    finally:
        torch.set_num_threads(before)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="a matter of glibc")
def test_retained_memory_is_not_paged_in_again_at_every_step():
    program = """
import resource, sys, torch
from stemma.training.hardware import retain_freed_memory
assert sys.argv[1] == "give" or retain_freed_memory()
faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(4):
    torch.ones(10 << 20)  # 40 MiB: above glibc's largest threshold for reuse
before = faults()
for _ in range(8):
    torch.ones(10 << 20)
print(faults() - before)
"""
    # in a separate process, because the setting cannot be undone
    def pages(how):
        return int(subprocess.run([sys.executable, "-c", program, how], capture_output=True, check=True).stdout)

    assert pages("keep") < pages("give") / 2


def test_retain_freed_memory_does_nothing_without_glibc(monkeypatch):
    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))
    assert retain_freed_memory() is False

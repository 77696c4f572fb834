"""The loop and training give the same results on several devices as on one."""

import os
import pathlib
import subprocess
import sys

import pytest

from flags import QUICK_TO_COMPILE

HERE = pathlib.Path(__file__).parent


@pytest.mark.parametrize(
    ("script", "devices", "agreeing"), [("many_devices.py", 8, 3), ("training_on_two_devices.py", 2, 2)]
)
def test_many_devices_agree_with_one(script, devices, agreeing):
    environment = os.environ | {
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices} {QUICK_TO_COMPILE}",
        "NPROC": "16",  # eight CPU devices on two cores starve each other of threads without it
        "PYTHONPATH": os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")]),
    }
    done = subprocess.run(
        [sys.executable, str(HERE / script)], env=environment, capture_output=True, text=True, timeout=400
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("agrees") == agreeing

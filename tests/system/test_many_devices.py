"""The loop on several devices equals the loop on one."""

import os
import pathlib
import subprocess
import sys

from flags import QUICK_TO_COMPILE

HERE = pathlib.Path(__file__).parent


def test_eight_devices_agree_with_one():
    environment = os.environ | {
        "XLA_FLAGS": f"--xla_force_host_platform_device_count=8 {QUICK_TO_COMPILE}",
        "NPROC": "16",  # eight CPU devices on two cores starve each other of threads without it
        "PYTHONPATH": str(HERE.parent),
    }
    done = subprocess.run(
        [sys.executable, str(HERE / "many_devices.py")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("agrees") == 3

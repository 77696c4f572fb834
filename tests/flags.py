"""How XLA compiles in tests: most of them compile far more than they compute."""

QUICK_TO_COMPILE = "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"

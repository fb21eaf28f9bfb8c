"""The Python kernel: a warm zygote, the kernels forked from it, and PID 1's end of both.

Three processes meet here. PID 1 imports `launcher`, `link` and `execution` (standard library only); the zygote runs
`zygote` and forks kernels, which live in `process`. Only those two load IPython, through `shell`. What they say to one
another is in `protocol`.
"""

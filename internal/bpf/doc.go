// Package bpf makes programs and maps of the kernel's by bpf(2): an assembler of eBPF (linux
// Documentation/bpf/standardization/instruction-set.rst), and the few calls that this project
// needs. Programs have no types, no relocations and no kernel functions, so that every kernel that
// knows their kind loads them.
package bpf

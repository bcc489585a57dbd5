package capture

import (
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/net/bpf"
)

// maxProgram is BPF_MAXINSNS of linux include/uapi/linux/bpf_common.h.
const maxProgram = 4096

// parseProgram reads a classic BPF program as tcpdump -ddd prints it: the number of instructions,
// then code, jt, jf and k of each, in decimal, a line each. Commas in the place of the line ends
// are accepted, as iptables -m bpf has them.
func parseProgram(text string) (*Filter, error) {
	lines := strings.FieldsFunc(text, func(r rune) bool { return r == '\n' || r == ',' })
	count, err := strconv.Atoi(strings.TrimSpace(lines[0]))
	if err != nil || count < 1 || count > maxProgram || count != len(lines)-1 {
		return nil, fmt.Errorf("filter program of %d lines says that it has %q instructions: want "+
			"the output of tcpdump -ddd, at most %d", len(lines)-1, lines[0], maxProgram)
	}
	var program []bpf.Instruction
	for _, line := range lines[1:] {
		var raw bpf.RawInstruction
		if _, err := fmt.Sscanf(line, "%d %d %d %d", &raw.Op, &raw.Jt,
			&raw.Jf, &raw.K); err != nil {
			return nil, fmt.Errorf("filter program: %q is no instruction: want code, jt, jf and k",
				line)
		}
		program = append(program, raw.Disassemble())
	}
	vm, err := bpf.NewVM(program)
	if err != nil {
		return nil, fmt.Errorf("filter program: %w", err)
	}
	return &Filter{program: vm}, nil
}

package firewall

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
)

// Conflicts asks the programs that are there, and returns one line for each rule that does not go
// together with a server on these ports. An error says what could not be read, and why.
func Conflicts(ctx context.Context, p Ports) (lines []string, err error) {
	var errs []error
	asked := false
	for _, command := range []string{"iptables", "ip6tables"} {
		text, err := runProgram(ctx, command+"-save")
		switch {
		case errors.Is(err, exec.ErrNotFound):
		case err != nil:
			errs = append(errs, err)
		default:
			asked = true
			lines = append(lines, fromIPTables(command, string(text), p)...)
		}
	}
	text, err := runProgram(ctx, "nft", "-j", "list", "ruleset")
	if err == nil && len(bytes.TrimSpace(text)) > 0 {
		var more []string
		more, err = fromNftables(text, p, asked)
		lines = append(lines, more...)
	}
	if err != nil && !errors.Is(err, exec.ErrNotFound) {
		errs = append(errs, err)
	}
	return lines, errors.Join(errs...)
}

// runProgram returns what a program prints. It is looked for in the directories of system programs,
// too.
func runProgram(ctx context.Context, name string, args ...string) ([]byte, error) {
	path, err := exec.LookPath(name)
	if err != nil {
		for _, dir := range []string{"/usr/sbin/", "/sbin/"} {
			if path, err = exec.LookPath(dir + name); err == nil {
				break
			}
		}
	}
	if err != nil {
		return nil, exec.ErrNotFound
	}
	cmd := exec.CommandContext(ctx, path, args...)
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Run(); err != nil {
		first, _, _ := strings.Cut(strings.TrimSpace(said.String()), "\n")
		return nil, fmt.Errorf("%s: %w: %s", name, err, first)
	}
	return out.Bytes(), nil
}

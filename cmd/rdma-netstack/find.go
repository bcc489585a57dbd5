package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// find returns the command at the start of args and its arguments.
func find(args []string) (*command, []string, error) {
	if len(args) == 0 {
		return nil, nil,
			usageError{errors.New("no command given: want one of " + names(commands()))}
	}
	if asksHelp(args[0]) {
		if len(args) == 1 {
			return helpFor("", usageText()), nil, nil
		}
		args = append(slices.Clone(args[1:]), "--help") // help serve http
	}
	for _, c := range commands() {
		words := strings.Fields(c.name)
		if len(args) >= len(words) && slices.Equal(args[:len(words)], words) {
			return &c, args[len(words):], nil
		}
	}
	return findGroup(args)
}

// looks says whether args have a command that looks at a running server.
func looks(args []string) bool {
	cmd, _, err := find(args)
	return asksExtcap(args) || err == nil && cmd.looks
}

// findGroup reports an unknown or missing second word of a command of two words. It returns the
// help of the group if that is requested.
func findGroup(args []string) (*command, []string, error) {
	group := groupOf(args[0])
	switch {
	case len(group) == 0:
		return nil, nil, usageError{
			fmt.Errorf(
				"no command %q: want one of %s",
				strings.Join(args[:min(2, len(args))], " "),
				names(commands()),
			),
		}
	case len(args) == 1:
		return nil, nil,
			usageError{fmt.Errorf("%s needs a command: one of %s", args[0], names(group))}
	case asksHelp(args[1]):
		text := "Usage: rdma-netstack " + args[0] + " COMMAND [flags]\n\n" + lines(group) +
			"\n\"rdma-netstack " + args[0] + " COMMAND --help\" lists the flags of a command.\n"
		return helpFor(args[0], text), nil, nil
	}
	return nil, nil, usageError{
		fmt.Errorf("no command %q: want one of %s", args[0]+" "+args[1], names(group)),
	}
}

// groupOf are the commands of two words that begin with this one.
func groupOf(first string) (group []command) {
	for _, c := range commands() {
		if strings.HasPrefix(c.name, first+" ") {
			group = append(group, c)
		}
	}
	return group
}

// helpFor is a command that only has a help text.
func helpFor(name, text string) *command {
	return &command{
		name: name,
		help: text,
		run:  func(context.Context, []string, streams) error { return errHelp },
	}
}

func asksHelp(arg string) bool {
	return slices.Contains([]string{"help", "-h", "-help", "--help"}, arg)
}

func names(of []command) string {
	var all []string
	for _, c := range of {
		all = append(all, c.name)
	}
	return strings.Join(all, ", ")
}

func lines(of []command) string {
	var b strings.Builder
	for _, c := range of {
		fmt.Fprintf(&b, "  %-12s  %s\n", c.name, c.line)
	}
	return b.String()
}

func usageText() string {
	return `Usage: rdma-netstack COMMAND [flags]

Runs Go servers on a TCP/IP stack in this process, on a slice of a Mellanox/NVIDIA ConnectX port:
the frames of one MAC address. Linux keeps the port's network interface and all other frames.

` + lines(commands()) + `
"rdma-netstack COMMAND --help" lists the flags of a command.
Exit codes: 0 success, 1 failure, 2 wrong usage.
`
}

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// find returns the command that args begin with and what follows it.
func find(args []string) (*command, []string, error) {
	if len(args) == 0 {
		return nil, nil, usageError{errors.New("what is to be done? one of " + names(commands()))}
	}
	if asksHelp(args[0]) {
		if len(args) == 1 {
			return helpFor("", usage()), nil, nil
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

// findGroup helps who gave the first of two words.
func findGroup(args []string) (*command, []string, error) {
	group := groupOf(args[0])
	switch {
	case len(group) == 0:
		return nil, nil, usageError{
			fmt.Errorf(
				"no command %q; there are %s",
				strings.Join(args[:min(2, len(args))], " "),
				names(commands()),
			),
		}
	case len(args) == 1:
		return nil, nil, usageError{fmt.Errorf("%s what? one of %s", args[0], names(group))}
	case asksHelp(args[1]):
		return helpFor(args[0], "Usage: rdma-netstack "+args[0]+" COMMAND [flags]\n\n"+lines(group)+
			"\n\"rdma-netstack "+args[0]+" COMMAND --help\" says more.\n"), nil, nil
	}
	return nil, nil, usageError{
		fmt.Errorf("no command %q; there are %s", args[0]+" "+args[1], names(group)),
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
		fmt.Fprintf(&b, "  %-12s %s\n", c.name, c.line)
	}
	return b.String()
}

func usage() string {
	return "Usage: rdma-netstack COMMAND [flags]\n\nOrdinary Go servers on a slice of an mlx5 port, beside Linux.\n\n" +
		lines(
			commands(),
		) +
		"\n\"rdma-netstack COMMAND --help\" says more. Exit codes: 0 done, 1 failed, 2 wrong usage.\n"
}

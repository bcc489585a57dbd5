// Package usage takes the help texts of commands apart, so that the completion of shells and the
// manual page say what --help says.
//
// A help text begins with lines "Usage: PROGRAM COMMAND ...". Blocks follow, with an empty line in
// front of each. In a block a line without indentation is prose; a line that begins with two spaces
// and a dash describes a flag, and deeper lines below it belong to it; other indented lines are
// printed as they are.
package usage

import (
	"regexp"
	"strings"
)

// Command describes one command with its help.
type Command struct {
	Name string // as typed, of one word or two
	Line string // what it does, in half a line
	Help string
}

// Flag describes a flag as a help text describes it.
type Flag struct {
	Name  string   // with its dashes
	Value string   // what stands for its value; empty for a flag without one
	Text  []string // description; a line with indentation is to be kept as it is
}

// flagHead matches the start of a line about a flag: name, then after one space the value.
var flagHead = regexp.MustCompile(`^(--?[A-Za-z][\w-]*)(?: ([^\s,]+))?(, )?( *)`)

// Flags returns those that a help text describes, in its order.
func Flags(help string) (all []Flag) {
	for _, b := range blocks(help) {
		for _, p := range b {
			all = append(all, p.flags...)
		}
	}
	return all
}

// part describes a piece of a block: prose, lines to be kept as they are, or flags with one
// description.
type part struct {
	prose, kept []string
	flags       []Flag
}

// blocks returns the parts of each block of a help text but its usage lines.
func blocks(help string) (all [][]part) {
	for _, text := range strings.Split(strings.TrimRight(help, "\n"), "\n\n") {
		if !strings.HasPrefix(text, "Usage: ") {
			all = append(all, parts(strings.Split(text, "\n")))
		}
	}
	return all
}

// parts takes the lines of one block apart.
func parts(lines []string) (all []part) {
	last := func() *part { return &all[len(all)-1] }
	column := 0 // where the description of the last flag begins; 0: not known yet
	for _, line := range lines {
		text := strings.TrimLeft(line, " ")
		indent := len(line) - len(text)
		inFlag := len(all) > 0 && last().flags != nil
		switch {
		case indent == 2 && flagHead.MatchString(text):
			flags, description := heads(text)
			column = 0
			if description != "" {
				column = len(line) - len(description)
			}
			all = append(all, part{flags: describe(flags, description)})
		case indent > 2 && inFlag:
			if column == 0 {
				column = indent
			}
			last().flags = describe(last().flags, line[min(column, indent):])
		case indent == 0:
			if len(all) == 0 || last().prose == nil {
				all = append(all, part{})
			}
			last().prose = append(last().prose, line)
		default:
			if len(all) == 0 || last().kept == nil {
				all = append(all, part{})
			}
			last().kept = append(last().kept, line)
		}
	}
	return all
}

// heads reads the flags at the start of a line, and returns what follows them.
func heads(text string) (flags []Flag, rest string) {
	for {
		m := flagHead.FindStringSubmatch(text)
		if m == nil {
			return flags, text
		}
		flags = append(flags, Flag{Name: m[1], Value: m[2]})
		text = text[len(m[0]):]
		if m[3] == "" {
			return flags, text
		}
	}
}

// describe adds a line to the description of the flags.
func describe(flags []Flag, line string) []Flag {
	for i := range flags {
		if line != "" {
			flags[i].Text = append(flags[i].Text, line)
		}
	}
	return flags
}

// synopsis returns the usage lines, without the word.
func synopsis(help string) (all []string) {
	first, _, _ := strings.Cut(help, "\n\n")
	for _, line := range strings.Split(first, "\n") {
		all = append(all, strings.TrimSpace(strings.TrimPrefix(line, "Usage:")))
	}
	return all
}

package usage

import (
	"slices"
	"strings"
)

// Lines that a shell is given in place of words.
const (
	Files       = ":file" // names of files fit
	Directories = ":dir"
)

// Completer finds the words that may come next on a command line.
type Completer struct {
	Commands []Command
	Words    map[string][]string        // by command: words that are no flags
	Values   map[string]func() []string // by flag: values
}

// Next returns the words that may stand in place of the last of the given ones, which may be empty:
// each with a description after a tab if it has one, or Files or Directories.
func (c Completer) Next(words []string) []string {
	if len(words) == 0 {
		words = []string{""}
	}
	before, last := words[:len(words)-1], words[len(words)-1]
	if len(before) > 0 && before[0] == "help" {
		return fitting(c.names(before[1:]), last)
	}
	command, before := c.find(before)
	if command == nil {
		return fitting(c.names(before), last)
	}
	return c.arguments(command, before, last)
}

// find returns the command at the start of the words and the words after it; no command if they
// are not enough for one.
func (c Completer) find(words []string) (*Command, []string) {
	for _, one := range c.Commands {
		name := strings.Fields(one.Name)
		if len(words) >= len(name) && slices.Equal(words[:len(name)], name) {
			return &one, words[len(name):]
		}
	}
	return nil, words
}

// names returns the words that continue those before to the name of a command.
func (c Completer) names(before []string) (all []string) {
	for _, one := range c.Commands {
		name := strings.Fields(one.Name)
		if len(name) <= len(before) || !slices.Equal(name[:len(before)], before) {
			continue
		}
		word := name[len(before)]
		if len(name) == len(before)+1 {
			word += "\t" + one.Line
		}
		if !slices.Contains(all, word) {
			all = append(all, word)
		}
	}
	if len(before) == 0 {
		all = append(all, "help\tthe flags of a command")
	}
	return all
}

// arguments returns the words that may follow those of a command.
func (c Completer) arguments(command *Command, before []string, last string) []string {
	flags := Flags(command.Help)
	if name, value, ok := strings.Cut(last, "="); ok && strings.HasPrefix(name, "-") {
		all := c.values(flags, name)
		for i, v := range all {
			if !strings.HasPrefix(v, ":") {
				all[i] = name + "=" + v
			}
		}
		return fitting(all, name+"="+value)
	}
	if len(before) > 0 && takesValue(flags, before[len(before)-1]) {
		return fitting(c.values(flags, before[len(before)-1]), last)
	}
	var all []string
	for _, word := range c.Words[command.Name] {
		if !slices.Contains(before, word) {
			all = append(all, word)
		}
	}
	if len(all) == 0 || strings.HasPrefix(last, "-") {
		for _, f := range flags {
			all = append(all, f.Name+"\t"+f.summary())
		}
		all = append(all, "--help\tthe flags of this command")
	}
	return fitting(all, last)
}

// values returns those of a flag: what is known of it, or what its help says.
func (c Completer) values(flags []Flag, name string) []string {
	if all := c.Values[name]; all != nil {
		return slices.Clone(all())
	}
	for _, f := range flags {
		switch {
		case f.Name != name:
		case f.Value == "FILE":
			return []string{Files}
		case f.Value == "DIR":
			return []string{Directories}
		case strings.Contains(f.Value, "|"):
			return strings.Split(f.Value, "|")
		}
	}
	return nil
}

func takesValue(flags []Flag, name string) bool {
	return slices.ContainsFunc(flags, func(f Flag) bool { return f.Name == name && f.Value != "" })
}

// summary returns the first line of the description, up to the end of its first sentence or clause.
func (f Flag) summary() string {
	if len(f.Text) == 0 {
		return ""
	}
	text := f.Text[0]
	for _, end := range []string{". ", "; ", ": ", " ("} {
		text, _, _ = strings.Cut(text, end)
	}
	return strings.TrimRight(text, ".,:")
}

// fitting returns the words that begin as the last one does, and what is for the shell.
func fitting(all []string, last string) (fit []string) {
	for _, word := range all {
		if strings.HasPrefix(word, last) || word == Files || word == Directories {
			fit = append(fit, word)
		}
	}
	return fit
}

package usage

import (
	"fmt"
	"slices"
	"strings"
)

// Manual holds what a manual page says besides the commands.
type Manual struct {
	Program string
	Line    string // what it is, in half a line
	Version string
	Date    string // of the version, such as 2026-11-22
	Help    string // of the program
}

// Man returns the manual page of section 1, in the man macros of roff (man(7)).
func (m Manual) Man(commands []Command) string {
	p := &manPage{seen: map[string]string{}}
	p.line(`.TH %s 1 "%s" "%s %s" "User Commands"`, strings.ToUpper(roff(m.Program)), m.Date,
		roff(m.Program), roff(m.Version))
	p.line(".SH NAME\n%s \\- %s", roff(m.Program), roff(m.Line))
	p.line(".SH SYNOPSIS")
	p.usage(m.Help)
	p.line(".SH DESCRIPTION")
	all := blocks(m.Help)
	for i, b := range all {
		switch {
		case i == 1 && b[0].kept != nil: // the list of commands, which have sections below
		case i > 0 && b[0].prose != nil && strings.HasPrefix(b[0].prose[0], `"`+m.Program):
			p.line(".SH COMMANDS")
			p.commands(m.Program, commands)
			p.line(".SH EXIT STATUS")
			p.prose(b[0].prose[1:], false)
		default:
			p.block(b, i > 0)
		}
	}
	return p.String()
}

// manPage collects the lines of a page.
type manPage struct {
	strings.Builder
	seen map[string]string // flags of a block, or a whole help text: the command that had them
}

func (p *manPage) line(format string, args ...any) { fmt.Fprintf(p, format+"\n", args...) }

// usage prints the usage lines.
func (p *manPage) usage(help string) {
	for i, line := range synopsis(help) {
		if i > 0 {
			p.line(".br")
		}
		first, rest, _ := strings.Cut(line, " ")
		p.line(`.B %s`, roff(first))
		p.line("%s", roff(rest))
	}
}

// commands prints a section for each command.
func (p *manPage) commands(program string, all []Command) {
	for _, c := range all {
		p.line(".SS %s", roff(c.Name))
		p.line("%s.", roff(strings.ToUpper(c.Line[:1])+c.Line[1:]))
		p.line(".PP")
		p.usage(c.Help)
		if before := p.seen[c.Help]; before != "" {
			p.line(".PP\nAs of %s.", roff(program+" "+before))
			continue
		}
		p.seen[c.Help] = c.Name
		for _, b := range blocks(c.Help) {
			p.blockOnce(b, c.Name)
		}
	}
}

// blockOnce prints a block, or where the same flags are.
func (p *manPage) blockOnce(b []part, command string) {
	key := fmt.Sprint(b)
	flags := slices.ContainsFunc(b, func(a part) bool { return a.flags != nil })
	if before := p.seen[key]; before != "" && flags && b[0].prose != nil {
		p.line(".PP\n%s the same flags as of %s.", roff(strings.Join(b[0].prose, " ")),
			roff(before))
		return
	}
	p.seen[key] = command
	p.block(b, true)
}

// block prints one block. Separate means that something is above it in its section.
func (p *manPage) block(b []part, separate bool) {
	for _, a := range b {
		switch {
		case a.flags != nil:
			p.flags(a.flags)
		case a.prose != nil:
			p.prose(a.prose, separate)
		default:
			p.line(".PP")
			p.keep(a.kept)
		}
		separate = true
	}
}

// prose prints lines that may be filled.
func (p *manPage) prose(lines []string, separate bool) {
	if separate {
		p.line(".PP")
	}
	for _, line := range lines {
		p.line("%s", roff(line))
	}
}

// keep prints lines that are to stay as they are.
func (p *manPage) keep(lines []string) {
	p.line(".nf")
	for _, line := range lines {
		p.line("%s", roff(line))
	}
	p.line(".fi")
}

// flags prints flags that have one description.
func (p *manPage) flags(all []Flag) {
	var heads []string
	for _, f := range all {
		head := `\fB` + roff(f.Name) + `\fR`
		if f.Value != "" {
			head += ` \fI` + roff(f.Value) + `\fR`
		}
		heads = append(heads, head)
	}
	p.line(".TP\n%s", strings.Join(heads, ", "))
	for text := all[0].Text; len(text) > 0; {
		n := slices.IndexFunc(text, func(s string) bool { return strings.HasPrefix(s, " ") })
		switch {
		case n < 0:
			n = len(text)
			fallthrough
		case n > 0:
			p.prose(text[:n], false)
		default:
			n = slices.IndexFunc(text, func(s string) bool { return !strings.HasPrefix(s, " ") })
			if n < 0 {
				n = len(text)
			}
			p.keep(text[:n])
		}
		text = text[n:]
	}
}

// roff is text that roff prints as it is: neither escapes nor requests, and hyphens that can be
// copied to a shell.
func roff(s string) string {
	s = strings.NewReplacer(`\`, `\e`, `-`, `\-`, `'`, `\(aq`, "`", `\(ga`, `^`, `\(ha`,
		`~`, `\(ti`).Replace(s)
	if strings.HasPrefix(s, ".") {
		s = `\&` + s
	}
	return s
}

package main

import (
	"encoding"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// option describes one flag. What it says is all there is: the help, the manual page and the
// completion are made of it.
type option struct {
	letter, name, value string
	to                  any
	help                string
	words               func() []string
}

// opt describes a flag, such as "mtu", or with its letter "c,count". value stands for the
// flag's value in the help: a word in capitals, or the values that there are, a|b|c; it is empty
// for a switch. to receives the value, and holds the default: a pointer to a bool, a string, a list
// of strings, a number, a duration or an encoding.TextUnmarshaler; or a func(string) error. Shells
// complete by words, or else by value, where FILE and DIR have their names.
func opt(name, value string, to any, help string, words ...func() []string) option {
	o := option{name: name, value: value, to: to, help: help}
	if letter, long, both := strings.Cut(name, ","); both {
		o.letter, o.name = letter, long
	}
	if len(words) > 0 {
		o.words = words[0]
	}
	return o
}

// flagGroup names the annotation of a flag by which the help sorts it under a title.
const flagGroup = "group"

// addFlags gives cmd flags, which its help lists under a title.
func addFlags(cmd *cobra.Command, title string, options ...option) {
	fs := cmd.Flags()
	fs.SortFlags = false
	for _, o := range options {
		o.define(fs)
		f := fs.Lookup(o.name)
		if o.value != "" {
			f.Value = namedValue{f.Value, o.value}
		}
		if slices.Contains([]string{"[]", "0s", "0"}, f.DefValue) {
			f.DefValue = "" // which the help does not show
		}
		fs.SetAnnotation(o.name, flagGroup, []string{title})
		o.complete(cmd)
	}
}

// define makes the flag.
func (o *option) define(fs *pflag.FlagSet) {
	name, letter := o.name, o.letter
	switch to := o.to.(type) {
	case *bool:
		fs.BoolVarP(to, name, letter, *to, o.help)
	case *string:
		fs.StringVarP(to, name, letter, *to, o.help)
	case *[]string:
		fs.StringArrayVarP(to, name, letter, *to, o.help)
	case *int:
		fs.IntVarP(to, name, letter, *to, o.help)
	case *uint8:
		fs.Uint8VarP(to, name, letter, *to, o.help)
	case *uint16:
		fs.Uint16VarP(to, name, letter, *to, o.help)
	case *int64:
		fs.Int64VarP(to, name, letter, *to, o.help)
	case *uint64:
		fs.Uint64VarP(to, name, letter, *to, o.help)
	case *time.Duration:
		fs.DurationVarP(to, name, letter, *to, o.help)
	case func(string) error:
		fs.FuncP(name, letter, o.help, to)
	case interface {
		encoding.TextUnmarshaler
		encoding.TextMarshaler
	}:
		fs.TextVarP(to, name, letter, to, o.help)
	default:
		panic(fmt.Sprintf("--%s: no flag for %T", name, o.to))
	}
}

// complete registers what the shell offers as the flag's value.
func (o *option) complete(cmd *cobra.Command) {
	words := o.words
	switch {
	case o.value == "FILE":
		cmd.MarkFlagFilename(o.name)
		return
	case o.value == "DIR":
		cmd.MarkFlagDirname(o.name)
		return
	case words == nil && strings.Contains(o.value, "|"):
		words = oneOf(strings.Split(o.value, "|")...)
	case words == nil:
		words = oneOf()
	}
	cmd.RegisterFlagCompletionFunc(o.name, completeWords(words))
}

// oneOf offers always the same words.
func oneOf(words ...string) func() []string {
	return func() []string { return slices.Clone(words) }
}

// completeWords completes by a list of words, and by no names of files.
func completeWords(words func() []string) cobra.CompletionFunc {
	return func(_ *cobra.Command, before []string, start string) ([]string,
		cobra.ShellCompDirective) {
		fit := slices.DeleteFunc(words(), func(w string) bool {
			return !strings.HasPrefix(w, start) || slices.Contains(before, w)
		})
		if slices.ContainsFunc(fit, func(w string) bool { return strings.HasSuffix(w, ":") }) {
			return fit, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
		}
		return fit, cobra.ShellCompDirectiveNoFileComp
	}
}

// namedValue gives a flag's value another name in the help than that of its type.
type namedValue struct {
	pflag.Value
	name string
}

func (v namedValue) Type() string { return v.name }

// Append implements pflag.SliceValue, for completion: a flag of several values may be repeated.
func (v namedValue) Append(s string) error { return v.Set(s) }

func (v namedValue) Replace([]string) error { return errors.ErrUnsupported }

func (v namedValue) GetSlice() []string { return nil }

// helpWidth counts the columns of the help.
const helpWidth = 100

// printHelp prints the help of a command: its usage, what it does, then its commands or flags.
func printHelp(cmd *cobra.Command, w io.Writer) {
	fmt.Fprintf(w, "Usage: %s\n\n%s\n", cmd.UseLine(), strings.TrimSpace(cmd.Long))
	if cmd.Example != "" {
		fmt.Fprintf(w, "\nExamples:\n%s\n", strings.TrimRight(cmd.Example, "\n"))
	}
	for _, group := range append(cmd.Groups(), &cobra.Group{Title: "Commands"}) {
		title := "\n" + group.Title + ":\n"
		for _, c := range cmd.Commands() {
			if c.IsAvailableCommand() && c.GroupID == group.ID {
				fmt.Fprintf(w, "%s  %-12s  %s\n", title, c.Name(), c.Short)
				title = ""
			}
		}
	}
	var titles []string
	groups := map[string]*pflag.FlagSet{}
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" || f.Name == "version" {
			return
		}
		title := append(f.Annotations[flagGroup], "Flags")[0] // those of package cobra have none
		if groups[title] == nil {
			titles = append(titles, title)
			groups[title] = pflag.NewFlagSet("", pflag.ContinueOnError)
			groups[title].SortFlags = false
		}
		groups[title].AddFlag(f)
	})
	for _, title := range titles {
		fmt.Fprintf(w, "\n%s:\n%s", title, groups[title].FlagUsagesWrapped(helpWidth))
	}
	if cmd.HasAvailableSubCommands() {
		fmt.Fprintf(w, "\n\"%s COMMAND --help\" lists the flags of a command.\n", cmd.CommandPath())
	}
}

// goFlagsPlace annotates commands that have flags of the go command: it says where those are given.
const goFlagsPlace = "go flags"

// flagError rewords the errors of package pflag: one clause that says what to write.
func flagError(cmd *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	var missing *pflag.ValueRequiredError
	var invalid *pflag.InvalidValueError
	switch {
	case errors.Is(err, pflag.ErrHelp):
		return err
	case errors.As(err, &missing):
		err = fmt.Errorf("missing value after %s", dashes(missing.GetSpecifiedName()))
	case errors.As(err, &invalid):
		err = fmt.Errorf("invalid value %q for %s: %w", invalid.GetValue(),
			dashes(invalid.GetFlag().Name), wanted(invalid))
	case errors.As(err, &unknown):
		name, letters := unknown.GetSpecifiedName(), unknown.GetSpecifiedShortnames()
		long, _, _ := strings.Cut(letters, "=")
		switch {
		case letters == "":
			err = fmt.Errorf("unknown flag --%s", name)
		case cmd.Flags().Lookup(long) != nil:
			err = fmt.Errorf("unknown flag -%s: write --%s", letters, letters)
		default:
			err = fmt.Errorf("unknown flag -%s", name)
		}
		if where := cmd.Annotations[goFlagsPlace]; where != "" && letters != "" {
			err = fmt.Errorf("unknown flag -%s: %s", letters, where)
		}
	}
	return usageError{err}
}

// wanted says what a flag takes instead of its invalid value.
func wanted(invalid *pflag.InvalidValueError) error {
	var number *strconv.NumError
	switch err := invalid.Unwrap(); {
	case invalid.GetFlag().Value.Type() == "bool":
		return errors.New("want true or false")
	case errors.As(err, &number) && errors.Is(err, strconv.ErrRange):
		return errors.New("out of range")
	case errors.As(err, &number):
		return errors.New("want a number")
	case strings.HasPrefix(err.Error(), "time: "):
		return errors.New("want a time, such as 10s or 2m")
	default:
		return err
	}
}

// dashes returns a flag's name as it is typed.
func dashes(name string) string {
	if len(name) == 1 {
		return "-" + name
	}
	return "--" + name
}

// addrList reads addresses of a flag that may be repeated.
func addrList(list *[]netip.Addr) func(string) error {
	return func(s string) error {
		a, err := netip.ParseAddr(s)
		if err != nil {
			return errors.New("want an IP address, such as 192.0.2.1 or 2001:db8::1")
		}
		*list = append(*list, a)
		return nil
	}
}

package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"strings"
)

// newFlags makes an empty set of flags that prints nothing by itself.
func newFlags() *flag.FlagSet {
	fs := flag.NewFlagSet("", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	return fs
}

// parse parses args, which may be flags only. Its errors are usage errors, or errHelp.
func parse(fs *flag.FlagSet, args []string) error {
	words, err := parseWords(fs, args)
	if err == nil && len(words) > 0 {
		err = usageError{fmt.Errorf("unexpected argument %q", words[0])}
	}
	return err
}

// parseWords parses args, which may be flags and words in any order, and returns the words. Its
// errors are usage errors, or errHelp.
func parseWords(fs *flag.FlagSet, args []string) (words []string, err error) {
	for {
		err := fs.Parse(args)
		switch {
		case errors.Is(err, flag.ErrHelp):
			return nil, errHelp
		case err != nil:
			return nil, usageError{errors.New(rewordFlagError(err.Error()))}
		case fs.NArg() == 0:
			return words, nil
		}
		words, args = append(words, fs.Arg(0)), fs.Args()[1:]
	}
}

// rewordFlagError rewrites the messages of package flag: two dashes, as in the help texts.
func rewordFlagError(message string) string {
	message = strings.Replace(message, "flag provided but not defined: -", "unknown flag --", 1)
	message = strings.Replace(message, "flag needs an argument: -",
		"missing value after --", 1)
	return strings.Replace(message, "for flag -", "for --", 1)
}

// givenFlags reports which flags were on the command line.
func givenFlags(fs *flag.FlagSet) map[string]bool {
	set := map[string]bool{}
	fs.Visit(func(f *flag.Flag) { set[f.Name] = true })
	return set
}

// addrList is a flag that may be given several times.
func addrList(fs *flag.FlagSet, name string, list *[]netip.Addr) {
	fs.Func(name, "", func(s string) error {
		a, err := netip.ParseAddr(s)
		if err != nil {
			return errors.New("want an IP address, such as 192.0.2.1 or 2001:db8::1")
		}
		*list = append(*list, a)
		return nil
	})
}

// stringList is a flag that may be given several times.
func stringList(fs *flag.FlagSet, name string, list *[]string) {
	fs.Func(name, "", func(s string) error {
		*list = append(*list, s)
		return nil
	})
}

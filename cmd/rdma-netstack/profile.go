package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"
)

func profileCommand(out streams) *cobra.Command {
	f := profileFlags{time: 5 * time.Second}
	cmd := &cobra.Command{Use: "profile KIND", Short: "CPU profile or trace of a running server",
		Long: `Takes a profile of a running server, which goes on serving. KIND is

    cpu         where it spends its time: go tool pprof FILE. The labels device and
                queue tell the receive workers apart:
                go tool pprof -tagfocus queue=rx0 FILE
    trace       what each goroutine does when: go tool trace FILE. The regions poll,
                deliver and transmit are those of the link
    goroutines  what each goroutine waits for, as text, with the same labels`,
		ValidArgs: []string{"cpu", "trace", "goroutines"},
		RunE: func(cmd *cobra.Command, words []string) error {
			return f.takeProfile(cmd.Context(), words, out)
		}}
	addFlags(cmd, "Flags",
		opt("w,write", "FILE", &f.file, "write to this file instead of standard output; cpu "+
			"and trace are not written to a terminal"),
		opt("for", "DURATION", &f.time, "for how long, at most 10m"),
		f.pidOption(cmd))
	return cmd
}

// profileFlags says which profile to take, and where to.
type profileFlags struct {
	lookFlags
	file string
	time time.Duration
	kind string
}

func (f *profileFlags) takeProfile(ctx context.Context, words []string, out streams) error {
	terminal, _ := out.stdout.to.(*os.File)
	if err := f.check(words, isTerminal(terminal)); err != nil {
		return usageError{err}
	}
	server, err := f.server(ctx)
	if err != nil {
		return err
	}
	answer, err := server.Open(ctx, f.path())
	if err != nil {
		return err
	}
	defer answer.Close()
	return writeTo(f.file, out.stdout, answer)
}

func (f *profileFlags) check(words []string, terminal bool) error {
	if len(words) != 1 || f.pathOf(words[0]) == "" {
		return errors.New("which? want cpu, trace or goroutines")
	}
	f.kind = words[0]
	switch {
	case f.time <= 0 || f.time > 10*time.Minute:
		return fmt.Errorf("--for %v: want a time up to 10m", f.time)
	case terminal && f.file == "" && f.kind != "goroutines":
		return errors.New("standard output is a terminal; give -w FILE")
	}
	return nil
}

// pathOf returns where a server has a kind of profile; "" if there is no such kind.
func (*profileFlags) pathOf(kind string) string {
	return map[string]string{"cpu": "/debug/profile", "trace": "/debug/trace",
		"goroutines": "/debug/goroutines"}[kind]
}

func (f *profileFlags) path() string {
	return fmt.Sprintf("%s?seconds=%g", f.pathOf(f.kind), f.time.Seconds())
}

// writeTo writes all of from to a file, or to out if that has no name.
func writeTo(name string, out io.Writer, from io.Reader) error {
	if name == "" {
		_, err := io.Copy(out, from)
		return err
	}
	file, err := os.OpenFile(name, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(file, from)
	return errors.Join(err, file.Close())
}

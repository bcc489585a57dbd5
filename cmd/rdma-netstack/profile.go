package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"
)

const profileHelp = `Usage: rdma-netstack profile KIND [-w FILE] [--for DURATION] [--pid PID]

Takes a profile of a running server, which goes on serving. KIND is

  cpu         where it spends its time: go tool pprof FILE. The labels device and queue tell the
              receive workers apart: go tool pprof -tagfocus queue=rx0 FILE
  trace       what each goroutine does when: go tool trace FILE. The regions poll, deliver and
              transmit are those of the link
  goroutines  what each goroutine waits for, as text, with the same labels

  -w FILE         where to (default: standard output; cpu and trace want no terminal)
  --for DURATION  for how long (default 5s, at most 10m)
  --pid PID       which server, if several run
`

func profileCommand() command {
	return command{name: "profile", line: "CPU profile or trace of a running server",
		help: profileHelp, run: takeProfile, looks: true}
}

// profileFlags are which profile to take, and where to.
type profileFlags struct {
	lookFlags
	file string
	time time.Duration
	kind string
}

func takeProfile(ctx context.Context, args []string, out streams) error {
	var f profileFlags
	fs := newFlags()
	fs.IntVar(&f.pid, "pid", 0, "")
	fs.StringVar(&f.file, "w", "", "")
	fs.DurationVar(&f.time, "for", 5*time.Second, "")
	words, err := parseWords(fs, args)
	if err != nil {
		return err
	}
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

package main

import (
	"errors"
	"flag"
	"io"
	"log/slog"
	"time"

	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/internal/logs"
)

// logFlags are how a server logs. The zero value is text, warnings and errors.
type logFlags struct {
	json  bool
	level *slog.Level // nil: info with json, else warn
}

func (f *logFlags) define(fs *flag.FlagSet) {
	fs.BoolVar(&f.json, "json-logs", false, "")
	fs.Func("log-format", "", func(s string) error {
		if f.json = s == "json"; !f.json && s != "text" {
			return errors.New("want text or json")
		}
		return nil
	})
	fs.Func("log-level", "", func(s string) error {
		f.level = new(slog.Level)
		if f.level.UnmarshalText([]byte(s)) != nil {
			return errors.New("want debug, info, warn or error")
		}
		return nil
	})
}

// logger writes to w.
func (f *logFlags) logger(w io.Writer) *slog.Logger {
	level := slog.LevelWarn
	switch {
	case f.level != nil:
		level = *f.level
	case f.json:
		level = slog.LevelInfo
	}
	options := &slog.HandlerOptions{Level: level}
	var to slog.Handler = slog.NewTextHandler(w, options)
	if f.json {
		to = slog.NewJSONHandler(w, options)
	}
	return slog.New(logs.Limit(to, time.Now))
}

package main

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/internal/running"
	"github.com/rdma-netstack/rdma-netstack/stack"
	"github.com/rdma-netstack/rdma-netstack/stack/admin"
)

const ssHelp = `Usage: rdma-netstack ss [-t] [-u] [-l] [-a] [-n] [-i] [-p] [-H] [--pid PID] [--json]

Lists the sockets of a running server, with the columns and words of ss of iproute2: connections,
unless -l or -a says otherwise. One-letter flags may be written together: -tulni.

  -t          TCP sockets
  -u          UDP sockets (default: both)
  -l          listening sockets only
  -a          listening sockets, too
  -n          rates as numbers; addresses and ports are always printed so
  -i          what TCP knows of each connection. Times in milliseconds
  -p          the process
  -H          without the titles

A server on the host's own address has connections that the kernel accepted for it, from this machine
and by other interfaces: -i has the word kernel first for these.
` + lookFlagsHelp

func ssCommand() command {
	return command{name: "ss", line: "sockets of a running server",
		help: ssHelp, run: listSockets, looks: true}
}

// ssFlags choose what is listed.
type ssFlags struct {
	lookFlags
	tcp, udp, listening, all, info, process, numeric, noHeader bool
}

func listSockets(ctx context.Context, args []string, out streams) error {
	var f ssFlags
	fs := newFlags()
	f.define(fs)
	fs.BoolVar(&f.tcp, "t", false, "")
	fs.BoolVar(&f.udp, "u", false, "")
	fs.BoolVar(&f.listening, "l", false, "")
	fs.BoolVar(&f.all, "a", false, "")
	fs.BoolVar(&f.numeric, "n", false, "")
	fs.BoolVar(&f.noHeader, "H", false, "")
	fs.BoolVar(&f.info, "i", false, "")
	fs.BoolVar(&f.process, "p", false, "")
	if err := parse(fs, apart(args, "tulanipH")); err != nil {
		return err
	}
	server, err := f.server(ctx)
	if err != nil {
		return err
	}
	all, err := server.Sockets(ctx)
	if err != nil {
		return err
	}
	all = slices.DeleteFunc(all, func(s stack.Socket) bool { return !f.wants(s) })
	if f.json {
		return admin.WriteSockets(out.stdout, all)
	}
	process, err := f.processOf(ctx, server)
	if err != nil {
		return err
	}
	return f.print(out.stdout, all, process)
}

// processOf is what ss -p says of the server; empty without -p.
func (f *ssFlags) processOf(ctx context.Context, server running.Server) (string, error) {
	if !f.process {
		return "", nil
	}
	var info admin.Info
	err := server.Get(ctx, "/info", &info)
	if err != nil {
		return "", err
	}
	name := ""
	if len(info.Command) > 0 {
		name = filepath.Base(info.Command[0])
	}
	return fmt.Sprintf("users:((%q,pid=%d))", name, server.PID), nil
}

// apart splits flags of one letter that are written together: -tu is -t -u.
func apart(args []string, letters string) (out []string) {
	for _, a := range args {
		name, short := strings.CutPrefix(a, "-")
		if !short || len(name) < 2 || strings.Trim(name, letters) != "" {
			out = append(out, a)
			continue
		}
		for _, l := range name {
			out = append(out, "-"+string(l))
		}
	}
	return out
}

// wants says whether a socket is listed. A UDP socket without a peer counts as listening.
func (f *ssFlags) wants(s stack.Socket) bool {
	if f.tcp != f.udp && f.tcp != (s.Network == "tcp") {
		return false
	}
	return f.all || f.listening == (s.State == "LISTEN" || s.State == "UNCONN")
}

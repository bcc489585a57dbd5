package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/rdma-netstack/rdma-netstack/internal/running"
	"github.com/rdma-netstack/rdma-netstack/stack"
)

// takeOverAuto names the --take-over that finds the server itself.
const takeOverAuto = "auto"

// checkEnding says in one sentence what is wrong with --drain, --take-over and
// --handover-to-kernel, or nil.
func (f *serveFlags) checkEnding(given func(flag string) bool) error {
	if err := f.checkKernel(); err != nil {
		return err
	}
	switch pid, err := strconv.Atoi(f.takeOver); {
	case f.drain < 0:
		return fmt.Errorf("--drain %v: want a time that is not negative, such as 30s", f.drain)
	case f.takeOver == "":
		return nil
	case f.takeOver != takeOverAuto && (err != nil || pid < 1):
		return fmt.Errorf("--take-over %q: want the process id of a server, or auto", f.takeOver)
	case f.device == simDevice:
		return errors.New("--take-over is for servers on one device, and each has a software NIC " +
			"of its own: leave it out")
	case given("mac") && !f.netdevMAC:
		return errors.New("--take-over takes the other server's own MAC address: leave out --mac")
	}
	return nil
}

// meet connects to the server to take over from, if there is one.
func (s *slice) meet(ctx context.Context, f *serveFlags, cfg *stack.Config) error {
	if f.takeOver == "" {
		return nil
	}
	path, err := predecessor(f.takeOver)
	if path == "" || err != nil {
		return err
	}
	p, err := stack.MeetPredecessor(ctx, path)
	if err != nil {
		return err
	}
	s.cleanup.add(p.Close)
	cfg.Predecessor = p
	return nil
}

// predecessor returns the socket of the server that --take-over names; "" if that is auto, and none
// runs.
func predecessor(which string) (string, error) {
	all := running.Handover(running.Directories(os.Getenv))
	if which != takeOverAuto {
		pid, _ := strconv.Atoi(which)
		if path, ok := all[pid]; ok {
			return path, nil
		}
		return "", fmt.Errorf("--take-over %s: no server of this user runs as that process and "+
			"can hand over; \"rdma-netstack ss\" names those there are", which)
	}
	paths := slices.Collect(maps.Values(all))
	if len(paths) > 1 {
		return "", errors.New("--take-over auto: several servers run; say which by its process id")
	}
	return append(paths, "")[0], nil
}

// takeOverTime says how long taking over may take. It takes milliseconds.
const takeOverTime = 10 * time.Second

// takeOver has the slice receive new clients, if it takes over from another server.
func (s *slice) takeOver() error {
	ctx, cancel := context.WithTimeout(context.Background(), takeOverTime)
	defer cancel()
	return s.stack.TakeOver(ctx)
}

// onLinux makes a second app, for Linux's sockets.
type onLinux func() (kernelApp, error)

// kernelApp describes an app, and how it serves one of Linux's sockets. packets may be nil: there
// are none of UDP.
type kernelApp struct {
	server
	streams func(net.Listener) error
	packets func(net.PacketConn) error
}

// serves makes serving functions for all sockets, which stay the caller's.
func (a kernelApp) serves(sockets []stack.KernelSocket) (serve []func() error, err error) {
	for _, s := range sockets {
		if s.Network == "udp" {
			pc, err := net.FilePacketConn(s.File)
			if err != nil {
				return nil, err
			}
			serve = append(serve, func() error { return a.packets(pc) })
			continue
		}
		ln, err := net.FileListener(s.File)
		if err != nil {
			return nil, err
		}
		serve = append(serve, func() error { return a.streams(ln) })
	}
	return serve, nil
}

// toLinux returns how a server's ending has Linux get new clients, if it is told to; else nil.
func (f *serveFlags) toLinux(st *stack.Stack, by onLinux) func(context.Context) (*beside, error) {
	if !f.handOverToKernel {
		return nil
	}
	return func(ctx context.Context) (*beside, error) {
		app, err := by()
		if err != nil {
			return nil, err
		}
		sockets, err := st.HandOverToKernel(ctx)
		if err != nil {
			return nil, errors.Join(err, app.Shutdown(ctx))
		}
		defer func() {
			for _, s := range sockets {
				s.File.Close()
			}
		}()
		serve, err := app.serves(sockets)
		if err != nil {
			return nil, err
		}
		b := &beside{app: app, running: len(serve), results: make(chan error, len(serve))}
		for _, fn := range serve {
			go func() { b.results <- fn() }()
		}
		return b, nil
	}
}

// beside represents the app that serves new clients from Linux's sockets while the other one ends.
// Nil is none.
type beside struct {
	app     server
	running int
	results chan error
}

// lastTime says how long its connections have to finish.
const lastTime = 5 * time.Second

// startBeside starts the app that serves new clients, if there is to be one.
func (e *ending) startBeside(ctx context.Context) *beside {
	if e.toLinux == nil {
		return nil
	}
	b, err := e.toLinux(ctx)
	if err != nil {
		e.log.Warn("new clients are refused: Linux does not get them", "reason", err)
		return nil
	}
	e.log.Warn("Linux accepts new clients", "for", e.limit)
	return b
}

// end serves until stopping ends, and then has the connections finish.
func (b *beside) end(stopping context.Context, e *ending) error {
	if b == nil {
		return nil
	}
	err := e.closeStack()
	e.log.Info("Linux serves alone, the device is free")
	<-stopping.Done()
	last, cancel := context.WithTimeout(context.Background(), lastTime)
	defer cancel()
	if b.app.Shutdown(last) != nil {
		e.log.Warn("cut connections of Linux that were left", "after", lastTime)
	}
	for ; b.running > 0; b.running-- {
		err = errors.Join(err, <-b.results)
	}
	return err
}

// checkKernel says what is wrong with --handover-to-kernel, or nil.
func (f *serveFlags) checkKernel() error {
	if f.handOverToKernel && !f.sources.host {
		return errors.New("--handover-to-kernel is for --address host: Linux does not have other " +
			"addresses")
	}
	return nil
}

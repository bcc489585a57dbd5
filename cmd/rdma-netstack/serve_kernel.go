package main

import (
	"context"
	"errors"
	"net"
	"time"

	"github.com/rdma-netstack/rdma-netstack/stack"
)

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

// beside is the app that serves new clients from Linux's sockets while the other one ends. Nil is
// none.
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

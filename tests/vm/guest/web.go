//go:build linux

package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net"
	"net/netip"

	"github.com/rdma-netstack/rdma-netstack/apps/httpd"
	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/stack"
)

// side says where a server of this program listens: on the kernel's stack, or on a slice.
type side struct{ mac, address *string }

// sideFlags defines the flags that say where.
func sideFlags(fs *flag.FlagSet) side {
	return side{fs.String("mac", "", "of a slice; empty: the kernel's stack"),
		fs.String("address", "", "of the slice, with its prefix length")}
}

// open opens the stack of the slice; nil: it is the kernel's.
func (s side) open() (*stack.Stack, error) {
	if *s.mac == "" {
		return nil, nil
	}
	hw, err := net.ParseMAC(*s.mac)
	if err != nil {
		return nil, err
	}
	at, err := netip.ParsePrefix(*s.address)
	if err != nil {
		return nil, err
	}
	return stack.Open(context.Background(), stack.Config{
		NIC: dv.NIC{Device: "mlx5_0", MAC: hw}, Addresses: []netip.Prefix{at}})
}

// webServer implements the subcommand: the project's web server on port 80, and one that reads what
// comes to port 9, on the kernel's stack or on a slice, until it is killed.
func webServer(args []string) error {
	fs := flag.NewFlagSet("web", flag.ExitOnError)
	at := sideFlags(fs)
	if err := fs.Parse(args); err != nil {
		return err
	}
	s, err := at.open()
	if err != nil {
		return err
	}
	listen := net.Listen
	if s != nil {
		defer s.Close()
		listen = s.Listen
	}
	web, err := listen("tcp", ":80")
	if err != nil {
		return err
	}
	sink, err := listen("tcp", ":9")
	if err != nil {
		return err
	}
	server, err := httpd.New(httpd.Config{DebugEndpoints: true})
	if err != nil {
		return err
	}
	go discard(sink)
	fmt.Println("serving")
	return server.Serve(web)
}

// discard reads what connections send, and says that it has read it by closing.
func discard(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			_, _ = io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{c},
				make([]byte, 256<<10))
		}()
	}
}

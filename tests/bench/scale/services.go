package main

import (
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rdma-netstack/rdma-netstack/apps/dnsd"
)

// Ports of the server.
const (
	portEcho = 7
	portSink = 9
	portDNS  = 53
	portHTTP = 80
	portIdle = 6000 // and the two after it
)

// patience is the longest that anything may take.
const patience = 2 * time.Minute

// services are the servers. They end when the stack is closed.
type services struct {
	running  sync.WaitGroup
	received atomic.Uint64 // bytes of bulk transfers
}

func startServices(h host) (*services, error) {
	s := &services{}
	dns, err := newDNS()
	if err != nil {
		return nil, err
	}
	web := &http.Server{Handler: http.HandlerFunc(kilobyte)}
	listeners := map[int]func(net.Listener) error{
		portHTTP: web.Serve, portSink: s.each(s.sink), portIdle: s.each(wait),
		portIdle + 1: s.each(wait), portIdle + 2: s.each(wait),
	}
	for port, serve := range listeners {
		l, err := h.Listen(port)
		if err != nil {
			return nil, err
		}
		s.running.Go(func() { _ = serve(l) })
	}
	for port, serve := range map[int]func(net.PacketConn) error{portEcho: echo,
		portDNS: dns.ServeUDP} {
		c, err := h.ListenUDP(port)
		if err != nil {
			return nil, err
		}
		s.running.Go(func() { _ = serve(c) })
	}
	return s, nil
}

// newDNS answers for example.org.
func newDNS() (*dnsd.Server, error) {
	dir, err := os.MkdirTemp("", "scale")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	zone := filepath.Join(dir, "zone")
	const text = "$ORIGIN example.org.\n$TTL 60\n@ SOA ns.example.org. root.example.org. " +
		"1 60 60 60 60\n@ NS ns\nns A 192.0.2.1\nwww A 192.0.2.1\n"
	if err := os.WriteFile(zone, []byte(text), 0o600); err != nil {
		return nil, err
	}
	return dnsd.New(dnsd.Config{ResponseRate: -1, Zones: []dnsd.Zone{{File: zone}}})
}

// each serves every connection in a goroutine of its own.
func (s *services) each(serve func(net.Conn)) func(net.Listener) error {
	return func(l net.Listener) error {
		for {
			c, err := l.Accept()
			if err != nil {
				return err
			}
			s.running.Go(func() {
				defer c.Close()
				serve(c)
			})
		}
	}
}

// wait reads until the connection ends.
func wait(c net.Conn) {
	var b [1]byte
	_, _ = c.Read(b[:])
}

func (s *services) sink(c net.Conn) {
	b := make([]byte, 256<<10)
	for {
		n, err := c.Read(b)
		s.received.Add(uint64(n))
		if err != nil {
			return
		}
	}
}

// echo sends each datagram back.
func echo(c net.PacketConn) error {
	b := make([]byte, 2048)
	for {
		n, from, err := c.ReadFrom(b)
		if err != nil {
			return err
		}
		if _, err := c.WriteTo(b[:n], from); err != nil {
			return err
		}
	}
}

var body = make([]byte, 1024)

// kilobyte answers with 1 KiB.
func kilobyte(w http.ResponseWriter, _ *http.Request) {
	w.Header()["Content-Length"] = contentLength
	_, _ = w.Write(body)
}

var contentLength = []string{"1024"}

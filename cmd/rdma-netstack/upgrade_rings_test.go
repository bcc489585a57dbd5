package main

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/apps/dnsd"
	"github.com/rdma-netstack/rdma-netstack/apps/httpd"
	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/lab"
	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/simnic/wire"
	"github.com/rdma-netstack/rdma-netstack/stack"
)

// ringServer is an app on a stack, and the next on another one that takes over: as processes, but
// that they are in this one, as a software NIC is one process's.
type ringServer struct {
	t       *testing.T
	nic     *simnic.NIC
	address string
	serve   servedBy
	host    *hostCard // nil: the address is the server's own
	toLinux onLinux   // with host: new clients are Linux's once the server is to end
	*ringStack
}

// hostCard is a card whose netdev has the addresses, in a namespace.
type hostCard struct {
	net    *lab.Net
	config dv.Config
}

// do runs what makes sockets of the kernel.
func (r *ringServer) do(fn func() error) error {
	if r.host == nil {
		return fn()
	}
	return r.host.net.Do(fn)
}

// config is a stack's.
func (r *ringServer) config(p *stack.Predecessor, log *slog.Logger) stack.Config {
	cfg := stack.Config{Predecessor: p, Addressing: stack.AddressOptions{DuplicateDetection: -1},
		Logger: log, Uplink: stack.UplinkOptions{MaxOutage: -1}}
	if r.host != nil {
		cfg.Host, cfg.NIC = true, r.host.config.NIC
		return cfg
	}
	cfg.Addresses = []netip.Prefix{netip.MustParsePrefix(r.address)}
	serveSim(&cfg.NIC, r.nic)
	return cfg
}

// servedBy makes an app on a stack, and the functions that serve.
type servedBy func(*stack.Stack, *slog.Logger) (server, []func() error, error)

// ringStack is one of them.
type ringStack struct {
	stack *stack.Stack
	path  string    // of the socket that waits for the next one
	node  io.Closer // of the device
	log   bytes.Buffer
	stop  context.CancelFunc
	// resets is how many the host's kernel has sent before the stack is closed, with toLinux
	resets int
	ended  chan struct{} // closed when the app has ended
	err    error         // with which; written before
}

// newRingServers are a web and a DNS server on one port.
func newRingServers(t *testing.T, n *lab.Net) (web, names upgradable) {
	t.Helper()
	nic, err := simnic.New(simnic.Config{Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nic.Close() })
	err = n.Do(func() error {
		port, err := wire.OpenPacket("veth0")
		if err == nil {
			err = nic.ConnectWire(port)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return &ringServer{t: t, nic: nic, address: "192.0.2.10/24", serve: serveWeb},
		&ringServer{t: t, nic: nic, address: "192.0.2.11/24", serve: namesOf(zoneFile(t))}
}

func zoneFile(t *testing.T) string {
	t.Helper()
	zone := filepath.Join(t.TempDir(), "z")
	if err := os.WriteFile(zone, []byte(zoneOfNS), 0o600); err != nil {
		t.Fatal(err)
	}
	return zone
}

func serveWeb(st *stack.Stack, log *slog.Logger) (server, []func() error, error) {
	app, err := httpd.New(httpd.Config{DebugEndpoints: true, MinRate: httpd.DefaultMinRate,
		Logger: log})
	if err != nil {
		return nil, nil, err
	}
	ln, err := st.Listen("tcp", ":80")
	return app, []func() error{func() error { return app.Serve(ln) }}, err
}

func namesOf(zone string) servedBy {
	return func(st *stack.Stack, log *slog.Logger) (server, []func() error, error) {
		app, err := dnsd.New(dnsd.Config{ResponseRate: -1, Logger: log,
			Zones: []dnsd.Zone{{File: zone}}})
		if err != nil {
			return nil, nil, err
		}
		f := &dnsFlags{serveFlags: serveFlags{listen: []string{":53"}}}
		serve, err := f.listenDNS(&slice{stack: st}, app)
		return app, serve, err
	}
}

// noting also stores what open returns.
func noting[K io.Closer](open func() (K, error), node *io.Closer) func() (K, error) {
	return func() (K, error) {
		k, err := open()
		*node = k
		return k, err
	}
}

func (r *ringServer) open(p *stack.Predecessor) *ringStack {
	r.t.Helper()
	o := &ringStack{ended: make(chan struct{}), path: filepath.Join(r.t.TempDir(), "next")}
	log := slog.New(slog.NewTextHandler(&o.log, nil))
	cfg := r.config(p, log)
	cfg.NIC.Model.Kernel = noting(cfg.NIC.Model.Kernel, &o.node)
	var st *stack.Stack
	var app server
	var serve []func() error
	err := r.do(func() (err error) {
		if st, err = stack.Open(r.t.Context(), cfg); err != nil {
			return err
		}
		o.stack = st
		r.t.Cleanup(func() { st.Close() })
		app, serve, err = r.serve(st, log)
		return err
	})
	if err == nil {
		err = st.TakeOver(r.t.Context())
	}
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	o.stop = stop
	taken := make(chan struct{})
	e := ending{device: st, limit: stepTime, log: log, taken: taken, drain: st.Drain,
		conns: st.Conns, cut: st.Cut, flush: func(ctx context.Context) error {
			if r.toLinux != nil {
				counted := r.countResets(o, st)
				defer func() { <-counted }()
			}
			return st.Shutdown(ctx)
		}, closeStack: st.Close,
		toLinux: (&serveFlags{handOverToKernel: r.toLinux != nil}).toLinux(st, r.toLinux)}
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Net: "unixpacket", Name: o.path})
	if err != nil {
		r.t.Fatal(err)
	}
	var waiting sync.WaitGroup
	waiting.Go(func() {
		if st.HandOver(ctx, l) == nil {
			close(taken)
		}
	})
	go func() {
		defer close(o.ended)
		o.err = serveUntilDone(ctx, app, e, serve...)
		stop()
		waiting.Wait()
	}()
	return o
}

// countResets notes what the host's kernel has sent until the stack begins to close. What comes
// behind the end of a connection later finds Linux, which resets it: see stack.Stack.Shutdown.
func (r *ringServer) countResets(o *ringStack, st *stack.Stack) (done chan struct{}) {
	done = make(chan struct{})
	go func() {
		defer close(done)
		for tick := time.NewTicker(time.Millisecond); ; <-tick.C {
			n := resets(r.t, r.host.net)
			if st.Unhealthy() != nil {
				tick.Stop()
				return
			}
			o.resets = n
		}
	}()
	return done
}

func (r *ringServer) next() { r.start() }

// start opens a stack in the place of the one that runs, if any, and returns that.
func (r *ringServer) start() (before *ringStack) {
	r.t.Helper()
	before = r.ringStack
	var p *stack.Predecessor
	if before != nil {
		var err error
		if p, err = stack.MeetPredecessor(r.t.Context(), before.path); err != nil {
			r.t.Fatal(err)
		}
	}
	r.ringStack = r.open(p)
	return before
}

func (r *ringServer) upgrade() {
	r.t.Helper()
	before := r.start()
	before.wait(r.t)
	if !strings.Contains(before.log.String(), "drained: no connection was cut") {
		r.t.Errorf("the server before: %s", &before.log)
	}
}

func (o *ringStack) wait(t *testing.T) {
	t.Helper()
	select {
	case <-o.ended:
	case <-time.After(2 * stepTime):
		t.Fatal("the server does not end")
	}
	if o.err != nil {
		t.Errorf("the server ended with %v: %s", o.err, &o.log)
	}
}

// replaceHeld implements upgradable: without its device the stack before sends nothing any more, as
// a process that is killed.
func (r *ringServer) replaceHeld(meanwhile func()) {
	r.t.Helper()
	before := r.start()
	meanwhile()
	before.node.Close()
	before.stack.Close()
	before.stop()
	<-before.ended
}

func (r *ringServer) end() {
	r.stop()
	r.wait(r.t)
}

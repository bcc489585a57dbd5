package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"time"

	"github.com/rdma-netstack/rdma-netstack/apps/httpd"
	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/lab"
	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/internal/probe"
	"github.com/rdma-netstack/rdma-netstack/stack"
)

// kernelPort says where the kernel's own web server of the demo on one address is.
const kernelPort = 8080

// hostWorld is the demo on one address:
//
//	namespace "outside"       this process                        namespace "host"
//	client                    HTTP and DNS servers: 80, 53        client
//	kernel TCP/IP             stack, link/rdma, dv                kernel TCP/IP: 8080, and by lo
//	eth0 ──────── wire ────── software ConnectX ─── netdev side ── eth0
type hostWorld struct {
	world
	inside *probe.Client // in the namespace of the servers
}

func runHostDemo(ctx context.Context, f demoFlags, p *printer) (err error) {
	began := time.Now()
	w, err := newHostWorld(ctx, f)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	p.say("One address, two owners: %s and %s, MAC %s, on the port of a software ConnectX.\n"+
		"Ports 80 and 53 are servers in this process, port %d is a server on a kernel socket.\n\n",
		w.netdev.v4.Addr(), w.netdev.v6.Addr(), w.netdev.mac, kernelPort)
	for _, c := range w.hostChecks() {
		p.check(w.try(ctx, c))
		if ctx.Err() != nil {
			return errors.New("interrupted")
		}
	}
	p.hostOwners(w, time.Since(began))
	if f.stay {
		p.offer(&w.cleanup, w.stack, "packet sockets", w.hostCommands())
	}
	p.flush()
	if f.stay {
		<-ctx.Done()
	}
	return nil
}

// newHostWorld makes the world. When it fails it closes everything.
func newHostWorld(ctx context.Context, f demoFlags) (*hostWorld, error) {
	w := &hostWorld{world: world{flags: f, client: newStation("outside", 1),
		netdev: newStation("host", 10), links: f.links}}
	w.slice = w.netdev
	for _, step := range []func(context.Context) error{w.makeNets, w.makeNIC, w.connectNIC,
		w.openOnHost, w.serveOnHost} {
		if err := step(ctx); err != nil {
			return nil, errors.Join(err, w.close())
		}
	}
	var programs []string
	if f.clients == "programs" {
		programs = []string{"ping", "curl", "dig"}
	}
	w.probe, w.inside = probe.New(w.outside, programs...), probe.New(w.host, programs...)
	return w, nil
}

// openOnHost opens the stack in the namespace whose address it serves on.
func (w *hostWorld) openOnHost(ctx context.Context) error {
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	cfg := stack.Config{Host: true, Logger: log,
		NIC: dv.Config{RxQueues: w.flags.queues.number()}}
	serveSim(&cfg.NIC, w.nic)
	cfg.NIC.Facts.Netdev = demoPort
	if err := w.host.Do(func() (err error) {
		w.stack, err = stack.Open(ctx, cfg)
		return err
	}); err != nil {
		return err
	}
	w.cleanup.add(func() error { return shutdownStack(w.stack) })
	return nil
}

// serveOnHost starts the servers, whose ports are taken in the host's namespace.
func (w *hostWorld) serveOnHost(context.Context) error {
	onKernel, err := w.host.Listen("tcp", fmt.Sprintf(":%d", kernelPort))
	if err != nil {
		return fmt.Errorf("listen for HTTP by the kernel: %w", err)
	}
	if err := w.serveHTTP(httpd.Config{DebugEndpoints: true}, onKernel); err != nil {
		return err
	}
	return w.host.Do(func() error {
		onStack, err := w.stack.Listen("tcp", ":80")
		if err != nil {
			return fmt.Errorf("listen for HTTP: %w", err)
		}
		if err := w.serveHTTP(httpd.Config{DebugEndpoints: true,
			Status: func() any { return status(w.stack, nil) }}, onStack); err != nil {
			return err
		}
		return w.serveDNS()
	})
}

// hostChecks returns those of demo --address host.
func (w *hostWorld) hostChecks() []demoCheck {
	kernel := url(netip.AddrPortFrom(w.netdev.v4.Addr(), kernelPort))
	by := func(where string, download func(ctx context.Context) error) func(*world,
		context.Context) (string, error) {
		return func(_ *world, ctx context.Context) (string, error) {
			before, _ := w.stack.HostStats()
			if err := download(ctx); err != nil {
				return "", err
			}
			after, _ := w.stack.HostStats()
			n := after.Accepted - before.Accepted
			if fromOutside := where == "outside"; fromOutside != (n == 0) {
				return "", fmt.Errorf("a client of %s: the kernel accepted %d connections", where,
					n)
			}
			return fmt.Sprintf("1 KiB to a client of %s, every byte right; "+
				"accepted by the kernel: %d", where, n), nil
		}
	}
	return []demoCheck{
		{"ping4", func(_ *world, ctx context.Context) (string, error) {
			return w.ping(ctx, w.netdev.v4.Addr())
		}},
		{"http_outside", by("outside", func(ctx context.Context) error {
			return errors.Join(w.probe.Download(ctx, w.netdev.url4(), smallBody),
				w.probe.Download(ctx, w.netdev.url6(), smallBody))
		})},
		{"http_bulk", (*world).checkBulk},
		{"http_local", by("the host itself", func(ctx context.Context) error {
			return w.inside.Download(ctx, w.netdev.url4(), smallBody)
		})},
		{"dns_udp", func(_ *world, ctx context.Context) (string, error) {
			return w.checkDNS(ctx, "udp")
		}},
		{"dns_local", func(_ *world, ctx context.Context) (string, error) {
			_, err := w.inside.Lookup(ctx, "udp", netip.AddrPortFrom(w.netdev.v4.Addr(), 53),
				"www.example", "A")
			return "A of www.example to a client of the host itself", err
		}},
		{"kernel_http", func(_ *world, ctx context.Context) (string, error) {
			return fmt.Sprintf("1 KiB from the kernel's server, %s", kernel),
				w.probe.Download(ctx, kernel, smallBody)
		}},
	}
}

// hostOwners prints who got how much of what came to the address.
func (p *printer) hostOwners(w *hostWorld, took time.Duration) {
	p.report.Seconds = took.Round(time.Millisecond).Seconds()
	p.owners(&w.world)
	h, _ := w.stack.HostStats()
	p.report.Host = &h
	p.say("\nfor the servers, by the kernel: %d connections, %d datagrams in, %d out; "+
		"frames that no rule took: %d\n", h.Accepted, h.Received, h.Sent, h.Unsteered)
	p.say("\n%s in %.1f s.\n", p.summary(), took.Seconds())
}

// hostCommands are commands for another terminal.
func (w *hostWorld) hostCommands() (all []string) {
	enter := "nsenter --net="
	if inUserNamespace() {
		enter = fmt.Sprintf("nsenter --user=/proc/%d/ns/user --preserve-credentials --net=",
			os.Getpid())
	}
	at := w.netdev.v4.Addr()
	for _, n := range []*lab.Net{w.outside, w.host} {
		all = append(all, fmt.Sprintf("%s%s curl http://%s/-/status.json", enter, n.Path(), at))
	}
	return append(all, fmt.Sprintf("%s%s curl http://%s:%d/-/status.json", enter,
		w.outside.Path(), at, kernelPort),
		fmt.Sprintf("%s%s dig @%s www.example", enter, w.outside.Path(), at))
}

package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/rdma-netstack/rdma-netstack/internal/probe"
)

// demoCheck describes one check of the demo. run returns a description of what was seen.
type demoCheck struct {
	name string
	run  func(w *world, ctx context.Context) (string, error)
}

func demoChecks() []demoCheck {
	return []demoCheck{
		{
			"ping4",
			func(w *world,
				ctx context.Context) (string, error) {
				return w.ping(ctx, w.slice.v4.Addr())
			},
		},
		{
			"ping6",
			func(w *world,
				ctx context.Context) (string, error) {
				return w.ping(ctx, w.slice.v6.Addr())
			},
		},
		{"http", (*world).checkHTTP},
		{"http_bulk", (*world).checkBulk},
		{"http_concurrent", (*world).checkConcurrent},
		{
			"dns_udp",
			func(w *world, ctx context.Context) (string, error) { return w.checkDNS(ctx, "udp") },
		},
		{
			"dns_tcp",
			func(w *world, ctx context.Context) (string, error) { return w.checkDNS(ctx, "tcp") },
		},
		{"broadcast", (*world).checkBroadcast},
		{"isolation", (*world).checkIsolation},
		{"netdev_mac", (*world).checkNetdevMAC},
		{"netdev_http", (*world).checkNetdev},
	}
}

const (
	smallBody = 1 << 10
	bulkBody  = 10 << 20
	lossyBody = 1 << 20 // instead, where most of the time is retransmission timeouts
	crowd     = 64
	crowdBody = 32 << 10
)

// result holds the result of a check.
type result struct {
	Name   string `json:"name"`
	OK     bool   `json:"ok"`
	Detail string `json:"detail"`
}

func (w *world) try(ctx context.Context, c demoCheck) result {
	ctx, cancel := context.WithTimeout(ctx, w.flags.limit)
	defer cancel()
	detail, err := c.run(w, ctx)
	if err != nil {
		return result{c.name, false, err.Error()}
	}
	return result{c.name, true, detail}
}

// pingTries gives the most runs of ping: on a busy machine it does not wait for a late answer.
const pingTries = 3

// ping requires an answer to every request of a run, or on a bad wire to some.
func (w *world) ping(ctx context.Context, to netip.Addr) (string, error) {
	count, enough := 3, 3
	if w.flags.faulty() {
		count, enough = 10, 1
	}
	var pongs probe.PingResult
	for range pingTries {
		var err error
		if pongs, err = w.probe.Ping(ctx, to, count); err != nil {
			return "", err
		}
		if pongs.Received >= enough {
			return fmt.Sprintf("%s (%s)", pongs, w.probe.Program("ping")), nil
		}
	}
	return "", fmt.Errorf("%s: %s", to, pongs)
}

func (w *world) checkHTTP(ctx context.Context) (string, error) {
	for _, url := range []string{w.slice.url4(), w.slice.url6()} {
		if err := w.probe.Download(ctx, url, smallBody); err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("1 KiB over IPv4 and IPv6, every byte right (%s)", w.probe.Program("curl")),
		nil
}

func (w *world) checkBulk(ctx context.Context) (string, error) {
	size := int64(bulkBody)
	if w.flags.lossy() {
		size = lossyBody
	}
	began := time.Now()
	if err := w.probe.Download(ctx, w.slice.url4(), size); err != nil {
		return "", err
	}
	down := time.Since(began)
	if err := w.probe.Echo(ctx, w.slice.url6(), size); err != nil {
		return "", err
	}
	both := time.Since(began) - down
	return fmt.Sprintf("%d MiB down in %d ms, up and back in %d ms, every byte right (%s)",
		size>>20, down.Milliseconds(), both.Milliseconds(), w.probe.Program("curl")), nil
}

func (w *world) checkConcurrent(ctx context.Context) (string, error) {
	rounds := 4
	if w.flags.lossy() {
		rounds = 1
	}
	began := time.Now()
	if err := w.probe.DownloadConcurrently(ctx, w.slice.url4(), crowd,
		rounds, crowdBody); err != nil {
		return "", err
	}
	return fmt.Sprintf(
		"%d clients at once, %d answers of %d KiB in %d ms, every byte right (Go clients)",
		crowd,
		crowd*rounds,
		crowdBody>>10,
		time.Since(began).Milliseconds(),
	), nil
}

func (w *world) checkDNS(ctx context.Context, network string) (string, error) {
	for _, server := range []netip.Addr{w.slice.v4.Addr(), w.slice.v6.Addr()} {
		for kind, want := range map[string]string{"A": w.slice.v4.Addr().String(),
			"AAAA": w.slice.v6.Addr().String()} {
			got, err := w.probe.Lookup(ctx, network, netip.AddrPortFrom(server, 53), "www.example",
				kind)
			if err != nil {
				return "", err
			}
			if !slices.Equal(got, []string{want}) {
				return "", fmt.Errorf("%s www.example at %s: %q, want %s", kind, server, got, want)
			}
		}
	}
	return fmt.Sprintf(
		"A and AAAA of www.example over IPv4 and IPv6 (%s)",
		w.probe.Program("dig"),
	), nil
}

// checkNetdev runs last: it also checks the load that ran during all the others.
func (w *world) checkNetdev(ctx context.Context) (string, error) {
	for _, url := range []string{w.netdev.url4(), w.netdev.url6()} {
		if err := w.probe.Download(ctx, url, smallBody); err != nil {
			return "", err
		}
	}
	detail, err := w.load.verdict()
	if err != nil {
		return "", errors.Join(errors.New("the load on the netdev broke"), err)
	}
	return fmt.Sprintf(
		"1 KiB over IPv4 and IPv6 (%s); the load on the kernel's server: %s",
		w.probe.Program("curl"),
		detail,
	), nil
}

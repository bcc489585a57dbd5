package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/lab"
	"github.com/rdma-netstack/rdma-netstack/internal/probe"
)

// demoCheck describes one check of the demo. run returns a description of what was seen.
type demoCheck struct {
	name string
	run  func(context.Context) (string, error)
}

// checks returns those of the demo. The last one also judges the load that ran during all others.
func (w *world) checks() []demoCheck {
	ping := func(to netip.Prefix) func(context.Context) (string, error) {
		return func(ctx context.Context) (string, error) { return w.ping(ctx, to.Addr()) }
	}
	dns := func(network string) func(context.Context) (string, error) {
		return func(ctx context.Context) (string, error) { return w.checkDNS(ctx, network) }
	}
	if w.flags.host {
		return []demoCheck{{"ping4", ping(w.slice.v4)}, {"http_outside", w.checkOutside},
			{"http_bulk", w.checkBulk}, {"http_local", w.checkLocal}, {"dns_udp", dns("udp")},
			{"dns_local", w.checkLocalDNS}, {"kernel_http", w.checkKernel}}
	}
	return []demoCheck{{"ping4", ping(w.slice.v4)}, {"ping6", ping(w.slice.v6)},
		{"http", w.checkHTTP}, {"http_bulk", w.checkBulk}, {"http_concurrent", w.checkConcurrent},
		{"dns_udp", dns("udp")}, {"dns_tcp", dns("tcp")}, {"broadcast", w.checkBroadcast},
		{"isolation", w.checkIsolation}, {"netdev_mac", w.checkNetdevMAC},
		{"netdev_http", w.checkNetdev}}
}

const (
	smallBody = 1 << 10
	bulkBody  = 10 << 20
	lossyBody = 1 << 20 // instead, where most of the time is retransmission timeouts
	crowd     = 64
	crowdBody = 32 << 10
	loadSize  = 16 << 10
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
	detail, err := c.run(ctx)
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

// download fetches a small page from a server of each IP version.
func (w *world) download(ctx context.Context, from station) (string, error) {
	return fmt.Sprintf("1 KiB over IPv4 and IPv6, every byte right (%s)", w.probe.Program("curl")),
		errors.Join(w.probe.Download(ctx, from.url4(), smallBody),
			w.probe.Download(ctx, from.url6(), smallBody))
}

func (w *world) checkHTTP(ctx context.Context) (string, error) { return w.download(ctx, w.slice) }

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
	return fmt.Sprintf("%d MiB down in %d ms, up and back in %d ms, every byte right (%s)",
		size>>20, down.Milliseconds(), (time.Since(began) - down).Milliseconds(),
		w.probe.Program("curl")), nil
}

func (w *world) checkConcurrent(ctx context.Context) (string, error) {
	rounds := 4
	if w.flags.lossy() {
		rounds = 1
	}
	began := time.Now()
	err := w.probe.DownloadConcurrently(ctx, w.slice.url4(), crowd, rounds, crowdBody)
	return fmt.Sprintf("%d clients at once, %d answers of %d KiB in %d ms, every byte right "+
		"(Go clients)", crowd, crowd*rounds, crowdBody>>10, time.Since(began).Milliseconds()), err
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
	return fmt.Sprintf("A and AAAA of www.example over IPv4 and IPv6 (%s)",
		w.probe.Program("dig")), nil
}

func (w *world) checkNetdev(ctx context.Context) (string, error) {
	detail, err := w.download(ctx, w.netdev)
	if err != nil {
		return "", err
	}
	load, err := w.load.verdict()
	return detail + "; the load on the kernel's server: " + load, err
}

// load runs one kernel HTTP client against the netdev's server during the checks.
type load struct {
	probe  *probe.Client
	url    string
	done   sync.WaitGroup
	cancel context.CancelFunc

	mu       sync.Mutex
	requests int           // answered correctly
	slowest  time.Duration // of those
	err      error         // the first
}

func (l *load) start(ctx context.Context) {
	ctx, l.cancel = context.WithCancel(ctx)
	l.done.Go(func() {
		err := l.probe.DownloadRepeatedly(ctx, l.url, loadSize, func(took time.Duration) {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.requests++
			l.slowest = max(l.slowest, took)
		})
		l.mu.Lock()
		defer l.mu.Unlock()
		if ctx.Err() == nil {
			l.err = err
		}
	})
}

// stop may be called again, and without start.
func (l *load) stop() {
	l.cancel()
	l.done.Wait()
}

// verdict returns the result so far.
func (l *load) verdict() (string, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil || l.requests == 0 {
		return "", fmt.Errorf("the load on the netdev broke after %d requests: %v", l.requests,
			l.err)
	}
	return fmt.Sprintf("%d requests of %d KiB meanwhile, slowest %.1f ms", l.requests, loadSize>>10,
		float64(l.slowest.Microseconds())/1000), nil
}

// acceptedByKernel runs a download and returns how many connections the kernel accepted for it.
func (w *world) acceptedByKernel(download func() error) (uint64, error) {
	before, _ := w.stack.HostStats()
	err := download()
	after, _ := w.stack.HostStats()
	return after.Accepted - before.Accepted, err
}

func (w *world) checkOutside(ctx context.Context) (string, error) {
	var detail string
	n, err := w.acceptedByKernel(func() (err error) {
		detail, err = w.download(ctx, w.slice)
		return err
	})
	if err == nil && n != 0 {
		err = fmt.Errorf("a client of outside: the kernel accepted %d connections", n)
	}
	return detail + "; accepted by the kernel: 0", err
}

func (w *world) checkLocal(ctx context.Context) (string, error) {
	n, err := w.acceptedByKernel(func() error {
		return w.inside.Download(ctx, w.slice.url4(), smallBody)
	})
	if err == nil && n == 0 {
		err = errors.New("a client of the host itself: the kernel accepted no connection")
	}
	return fmt.Sprintf("1 KiB to a client of the host itself, every byte right; accepted by the "+
		"kernel: %d", n), err
}

func (w *world) checkLocalDNS(ctx context.Context) (string, error) {
	_, err := w.inside.Lookup(ctx, "udp", netip.AddrPortFrom(w.slice.v4.Addr(), 53), "www.example",
		"A")
	return "A of www.example to a client of the host itself", err
}

func (w *world) checkKernel(ctx context.Context) (string, error) {
	at := url(netip.AddrPortFrom(w.slice.v4.Addr(), kernelPort))
	return "1 KiB from the kernel's server, " + at, w.probe.Download(ctx, at, smallBody)
}

// burstSize gives the number of raw frames that each of these checks sends. Other traffic of the
// slice meanwhile (address resolution) is a frame or two, and cannot be mistaken for a burst.
const burstSize = 64

// quietTries says how often a burst is repeated to find a moment without such other traffic.
const quietTries = 10

// thirdMAC belongs to no party.
var thirdMAC = net.HardwareAddr{0x02, 0x00, 0x5e, 0x00, 0x53, 0x99}

// strays returns how many extra frames the wire may produce by itself: none, unless it is
// configured to duplicate.
func (w *world) strays() int {
	if w.flags.faulty() {
		return burstSize / 4
	}
	return 0
}

// checkIsolation sends frames for a third party: neither owner of the port may receive one.
func (w *world) checkIsolation(ctx context.Context) (string, error) {
	t, err := w.openMonitor()
	if err != nil {
		return "", err
	}
	defer t.close()
	missed := w.nic.Counters().Drops.SteerMissed
	for range quietTries {
		if err := t.burst(ctx, func() []byte {
			return t.echo(thirdMAC, w.slice.v4.Addr())
		}); err != nil {
			return "", err
		}
		if n := t.echoAnswers(); n > 0 {
			return "", fmt.Errorf("%d of %d echo requests for %s were answered", n, burstSize,
				thirdMAC)
		}
		if n := count(t.onHost, func(s probe.Frame) bool {
			return bytes.Equal(s.Dst, thirdMAC)
		}); n > 0 {
			return "", fmt.Errorf("%d of %d frames for %s reached the netdev", n, burstSize,
				thirdMAC)
		}
		if t.onSlice <= w.strays() {
			return fmt.Sprintf("%d frames for a third MAC, %s: neither owner got one, the NIC "+
				"dropped %d as nobody's", burstSize, thirdMAC,
				w.nic.Counters().Drops.SteerMissed-missed), nil
		}
	}
	return "", fmt.Errorf("of %d frames for %s the slice got %d", burstSize, thirdMAC, t.onSlice)
}

// checkBroadcast sends broadcast frames: both owners must receive each.
func (w *world) checkBroadcast(ctx context.Context) (string, error) {
	t, err := w.openMonitor()
	if err != nil {
		return "", err
	}
	defer t.close()
	if err := t.burst(ctx, func() []byte {
		return probe.EtherFrame(probe.Broadcast, w.client.mac, probe.Experimental,
			[]byte("to everybody"))
	}); err != nil {
		return "", err
	}
	onNetdev := count(t.onHost, func(s probe.Frame) bool {
		return s.EtherType == probe.Experimental
	})
	if want := burstSize - w.strays()*2; t.onSlice < want || onNetdev < want {
		return "", fmt.Errorf("of %d broadcasts the slice got %d and the netdev %d", burstSize,
			t.onSlice, onNetdev)
	}
	return fmt.Sprintf("%d broadcasts, both owners got each", burstSize), nil
}

// checkNetdevMAC sends the netdev frames with the slice's IP address in them, which the slice must
// not answer, and ARP requests for each address, which only the owner may answer.
func (w *world) checkNetdevMAC(ctx context.Context) (string, error) {
	t, err := w.openMonitor()
	if err != nil {
		return "", err
	}
	defer t.close()
	owners := []station{w.slice, w.netdev}
	var requests [][]byte
	for _, p := range owners {
		requests = append(requests, probe.ARPFrame(w.client.mac, w.client.v4.Addr(), p.v4.Addr()))
	}
	if err := t.burst(ctx, func() []byte { return t.echo(w.netdev.mac, w.slice.v4.Addr()) },
		requests...); err != nil {
		return "", err
	}
	if n := t.echoAnswers(); n > 0 {
		return "", fmt.Errorf("%d of %d echo requests for the slice's address at the netdev's MAC "+
			"were answered", n, burstSize)
	}
	for _, p := range owners {
		all, right := 0, 0
		for _, s := range t.answers {
			if s.ARPSender == p.v4.Addr() {
				all++
				if bytes.Equal(s.Src, p.mac) {
					right++
				}
			}
		}
		if all != right || right == 0 && !w.flags.faulty() {
			return "", fmt.Errorf("%d ARP replies for %s of %s, of which %d came from its MAC %s",
				all, p.v4.Addr(), p.name, right, p.mac)
		}
	}
	return fmt.Sprintf("%d echo requests for the slice at the netdev's MAC: no answer; ARP: each "+
		"owner answers for itself", burstSize), nil
}

// frameMonitor sends raw frames from "outside" and records what comes back there and what reaches
// "host". A burst is followed by an echo request to each owner of the port: when both have
// answered, all earlier frames have been processed.
type frameMonitor struct {
	w             *world
	outside, host *lab.Port
	id, seq       uint16
	// sequence numbers of the echo requests that follow bursts; on a bad wire answers may be late
	// and duplicated
	pings map[uint16]bool

	// since the last burst, and without our echo requests to the owners and their answers
	answers, onHost []probe.Frame // that came back outside, that reached "host"
	onSlice         int           // that the NIC passed to the slice
}

func (w *world) openMonitor() (*frameMonitor, error) {
	t := &frameMonitor{w: w, id: uint16(time.Now().UnixNano()) | 1, pings: map[uint16]bool{}}
	err := w.outside.Do(func() (err error) { t.outside, err = lab.OpenPort(demoPort); return err })
	if err != nil {
		return nil, err
	}
	err = w.host.Do(func() (err error) { t.host, err = lab.OpenPort(demoPort); return err })
	if err != nil {
		return nil, errors.Join(err, t.outside.Close())
	}
	if err := errors.Join(t.outside.LeaveOutTCP(), t.host.LeaveOutTCP()); err != nil {
		t.close()
		return nil, fmt.Errorf("monitor frames: %w", err)
	}
	return t, nil
}

func (t *frameMonitor) close() { t.outside.Close(); t.host.Close() }

// echo makes an echo request of the client to an IP address whose owner may differ from the MAC's.
func (t *frameMonitor) echo(mac net.HardwareAddr, to netip.Addr) []byte {
	t.seq++
	return probe.EchoFrame(mac, t.w.client.mac, t.w.client.v4.Addr(), to, t.id, t.seq)
}

// echoAnswers returns how many echo requests of bursts were answered.
func (t *frameMonitor) echoAnswers() int {
	return count(t.answers, func(s probe.Frame) bool {
		return s.EchoReply && s.ID == t.id && !t.pings[s.Seq]
	})
}

// burst sends frames and others, and returns when both owners have processed all that reached them.
func (t *frameMonitor) burst(ctx context.Context, frame func() []byte, others ...[]byte) error {
	for range burstSize {
		others = append(others, frame())
	}
	t.answers, t.onHost = nil, nil
	before := t.w.nic.Counters().Slice.RxPackets
	for _, f := range others {
		if err := t.outside.Send(f); err != nil {
			return fmt.Errorf("send a raw frame: %w", err)
		}
	}
	asked, err := t.await(ctx, t.w.slice, nil)
	if err == nil {
		_, err = t.await(ctx, t.w.netdev, t.host)
	}
	// The NIC counts what it has received at once when all of that has its completions, and then
	// sends the netdev its part: the slice's answer may be faster than the count.
	t.onSlice = int(t.w.nic.Counters().Slice.RxPackets-before) - asked
	return err
}

// await pings the party until it answers, and until the port, if any, has the request, and records
// all other frames meanwhile. It returns the number of requests.
func (t *frameMonitor) await(ctx context.Context, to station, at *lab.Port) (asked int, err error) {
	for ; ctx.Err() == nil; asked++ {
		ping := t.echo(to.mac, to.v4.Addr())
		t.pings[t.seq] = true
		if err := t.outside.Send(ping); err != nil {
			return asked, fmt.Errorf("send a raw frame: %w", err)
		}
		seen := at == nil || t.record(at, &t.onHost, func(s probe.Frame) bool {
			return s.EchoRequest && s.ID == t.id && s.Seq == t.seq
		})
		if t.record(t.outside, &t.answers, func(s probe.Frame) bool {
			return s.EchoReply && s.ID == t.id && s.Seq == t.seq
		}) && seen {
			return asked + 1, nil
		}
	}
	return asked, fmt.Errorf("no answer from %s to an echo request in a raw frame: %w", to.name,
		ctx.Err())
}

// record records what a port receives until the expected frame, and reports whether that arrived.
func (t *frameMonitor) record(port *lab.Port, into *[]probe.Frame,
	last func(probe.Frame) bool) bool {
	buf, deadline := make([]byte, 64<<10), time.Now().Add(time.Second)
	for {
		frame, err := port.Recv(buf, deadline)
		if err != nil {
			return false
		}
		s := probe.ParseFrame(frame)
		if last(s) {
			return true
		}
		*into = append(*into, s)
	}
}

// count returns the number of the frames that match.
func count(all []probe.Frame, wanted func(probe.Frame) bool) (n int) {
	for _, s := range all {
		if wanted(s) {
			n++
		}
	}
	return n
}

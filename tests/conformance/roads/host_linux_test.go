package roads

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/lab"
	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/simnic/kernel"
	"github.com/rdma-netstack/rdma-netstack/simnic/wire"
	"github.com/rdma-netstack/rdma-netstack/stack"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
)

// end sends or receives on the system's time. Linux and the product's stacks are ends.
type end interface {
	Listen(network, address string) (net.Listener, error)
	DialContext(ctx context.Context, network, address string) (net.Conn, error)
}

// bench holds roads on the system's time between a Linux host, which is the client, and a server of
// each kind.
type bench struct {
	client cubic
	kinds  []kind
}

// kind describes a server, which has a relay of its own to the client.
type kind struct {
	name   string
	server end
	relay  *Relay
	n      byte // see address
}

const device = "road"

// newBench makes Linux, and the product on packet sockets and on the software NIC.
func newBench(t *testing.T) *bench {
	need.NetNS(t)
	need.TUN(t)
	client, err := lab.New("client")
	must(t, err)
	t.Cleanup(func() { client.Close() })
	must(t, client.Do(tune))
	b := &bench{client: cubic{client}}
	b.add(t, "Linux", func(t *testing.T, n byte) (end, wire.Wire) {
		host, w := linux(t, n)
		return cubic{host}, w
	})
	b.add(t, "packet", func(t *testing.T, n byte) (end, wire.Wire) {
		host, w := linux(t, n)
		var s *stack.Stack
		must(t, host.Do(func() (err error) {
			s, err = stack.Open(context.Background(),
				stack.Config{Uplink: stack.UplinkOptions{Backend: stack.BackendPacket},
					NIC:        dv.NIC{Device: device},
					Addressing: stack.AddressOptions{DuplicateDetection: -1},
					Addresses:  addresses(n, 3)})
			return err
		}))
		t.Cleanup(func() { s.Close() })
		return s, w
	})
	b.add(t, "simnic", func(t *testing.T, n byte) (end, wire.Wire) {
		near, far := wire.Pair()
		nic, err := simnic.New(simnic.Config{Seed: 1})
		must(t, err)
		must(t, nic.ConnectWire(near))
		s, err := stack.Open(context.Background(), stack.Config{
			NIC: dv.NIC{Model: dv.Model{
				Kernel: kernel.New(nic, kernel.Config{}).OpenNode,
				Facts:  dv.PortFacts{Name: nic.Config().Name, MAC: nic.MAC(), MTU: nic.MTU()},
			}},
			Addressing: stack.AddressOptions{DuplicateDetection: -1},
			Addresses:  addresses(n, 3)})
		must(t, err)
		t.Cleanup(func() {
			s.Close()
			nic.Close()
			near.Close()
		})
		return s, far
	})
	return b
}

// address returns that of a host of the n-th road, with the length of its prefix.
func address(n, host byte) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, n, 0, host}), 24)
}

// addresses returns both of a host of the n-th road.
func addresses(n, host byte) []netip.Prefix {
	v6 := netip.AddrFrom16([16]byte{0: 0xfd, 7: n, 15: host})
	return []netip.Prefix{address(n, host), netip.PrefixFrom(v6, 64)}
}

// at returns an address of the server, IPv6 or IPv4.
func (k kind) at(v6 bool) netip.Addr {
	host := byte(1)
	if _, ours := k.server.(*stack.Stack); ours {
		host = 3
	}
	if v6 {
		return addresses(k.n, host)[1].Addr()
	}
	return address(k.n, host).Addr()
}

// cubic opens connections of a Linux host with that congestion control, whatever the machine's
// default is.
type cubic struct{ *lab.Net }

func (h cubic) Listen(network, address string) (ln net.Listener, err error) {
	err = h.Do(func() (err error) {
		ln, err = (&net.ListenConfig{Control: useCubic}).Listen(context.Background(), network,
			address)
		return err
	})
	return ln, err
}

func (h cubic) DialContext(ctx context.Context, network, address string) (c net.Conn, err error) {
	err = h.Do(func() (err error) {
		c, err = (&net.Dialer{Control: useCubic}).DialContext(ctx, network, address)
		return err
	})
	return c, err
}

func useCubic(_, _ string, c syscall.RawConn) (err error) {
	return errors.Join(c.Control(func(fd uintptr) {
		err = unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, "cubic")
	}), err)
}

// tune gives a namespace Linux's usual limits, and no memory of earlier connections.
func tune() error {
	var err error
	for name, value := range map[string]string{
		"tcp_no_metrics_save": "1",
		"tcp_rmem":            "4096 131072 6291456", "tcp_wmem": "4096 16384 4194304",
	} {
		err = errors.Join(err, os.WriteFile("/proc/sys/net/ipv4/"+name, []byte(value), 0))
	}
	return err
}

// linux makes a namespace with a TAP, and returns the TAP's wire.
func linux(t *testing.T, n byte) (*lab.Net, wire.Wire) {
	host, err := lab.New(fmt.Sprint("server ", n))
	must(t, err)
	t.Cleanup(func() { host.Close() })
	must(t, host.Do(tune))
	return host, tap(t, host, device, addresses(n, 1))
}

func tap(t *testing.T, host *lab.Net, name string, of []netip.Prefix) (w wire.Wire) {
	must(t, host.Do(func() error {
		tap, err := wire.OpenTAP(name)
		if err != nil {
			return err
		}
		w = tap
		return lab.Up(name, lab.Setup{Addresses: of})
	}))
	t.Cleanup(func() { w.Close() })
	return w
}

// add lays a road from the client to a server.
func (b *bench) add(t *testing.T, name string, open func(*testing.T, byte) (end, wire.Wire)) {
	n := byte(len(b.kinds) + 1)
	server, near := open(t, n)
	far := tap(t, b.client.Net, fmt.Sprint(device, n), addresses(n, 2))
	began := time.Now()
	relay, err := NewRelay(near, far, func() time.Duration { return time.Since(began) }, sleeper)
	must(t, err)
	b.kinds = append(b.kinds, kind{name, server, relay, n})
}

// sleeper implements Waker by a thread of its own: the runtime's timers are late by up to a
// millisecond.
func sleeper(f func()) func(time.Duration) {
	wake := make(chan time.Time, 1)
	go func() {
		runtime.LockOSThread()
		_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1000, 0, 0, 0)
		for at := range wake {
			for d := time.Until(at); d > 0; d = time.Until(at) {
				ts := unix.NsecToTimespec(int64(min(d, 300*time.Microsecond)))
				_ = unix.Nanosleep(&ts, nil)
				select {
				case at = <-wake:
				default:
				}
			}
			f()
		}
	}()
	var mu sync.Mutex
	return func(d time.Duration) {
		mu.Lock()
		defer mu.Unlock()
		select {
		case <-wake:
		default:
		}
		wake <- time.Now().Add(d)
	}
}

// answer returns how long one of size bytes, in one write, takes on a connection of its own.
func (b *bench) answer(k kind, size int) (took time.Duration, err error) {
	at := netip.AddrPortFrom(k.at(false), 5001).String()
	ln, err := k.server.Listen("tcp4", at)
	if err != nil {
		return 0, err
	}
	defer ln.Close()
	go func() {
		c, err := ln.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		if _, err = io.ReadFull(c, make([]byte, 100)); err == nil {
			_, _ = c.Write(make([]byte, size))
		}
		_, _ = io.Copy(io.Discard, c)
	}()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	c, err := b.client.DialContext(ctx, "tcp4", at)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	began := time.Now()
	if _, err = c.Write(make([]byte, 100)); err == nil {
		_, err = io.CopyN(io.Discard, c, int64(size))
	}
	return time.Since(began), err
}

// printAnswers prints how long the answers of TestAnswers take: the median and the longest but one
// in twenty of ROUNDS runs, and of four times as many with 1 % of the frames lost.
func (b *bench) printAnswers(t *testing.T) {
	rounds := number("ROUNDS", 3)
	fmt.Printf("| answer | %s |\n|%s\n", b.names(" | "), strings.Repeat("---|", 1+len(b.kinds)))
	for _, tt := range answers {
		b.answerRow(t, tt.String(), tt.size, rounds,
			func(w *Way) { w.Lose = losing(tt.lost, tt.size) })
	}
	for _, size := range []int{14000, 60000} {
		b.answerRow(t, fmt.Sprint(size, " bytes, 1 % lost"), size, 4*rounds,
			func(w *Way) { w.Loss = 0.01 })
	}
}

func (b *bench) answerRow(t *testing.T, name string, size, rounds int, lose func(*Way)) {
	line := "| " + name
	took := make([][]float64, len(b.kinds))
	for round := range rounds {
		for i, k := range b.kinds {
			ways := [2]*Way{NewWay(Road{Delay: answerDelay}, uint64(round), 0),
				NewWay(Road{Delay: answerDelay}, uint64(round), 1)}
			lose(ways[0])
			k.relay.Travel(ways)
			d, err := b.answer(k, size)
			must(t, err)
			took[i] = append(took[i], d.Seconds()*1e3)
		}
	}
	for _, of := range took {
		sorted := slices.Sorted(slices.Values(of))
		line += fmt.Sprintf(" | %.0f, %.0f ms", median(of), sorted[len(sorted)*19/20])
	}
	fmt.Println(line + " |")
}

// TestTable prints the rates of Linux and of the product in turns, medians of ROUNDS runs of SECS
// seconds, on the roads and round trips that ROADS and RTTS name, of the traffic that TRAFFIC
// names. It compares nothing with bounds, as rates on the system's time depend on the machine:
// TestWorlds does, on virtual time.
func TestTable(t *testing.T) {
	if os.Getenv("ROADS") == "" {
		need.That(t, "ROADS", errors.New("make test-roads sets it: an hour"))
	}
	b := newBench(t)
	if os.Getenv("ROADS") == "answers" {
		b.printAnswers(t)
		return
	}
	rounds, d := number("ROUNDS", 3), time.Duration(number("SECS", 3))*time.Second
	fmt.Printf("| RTT | road | | %s | ratios | lost of each | latest frame |\n|%s\n",
		b.names(" | "), strings.Repeat("---|", 6+len(b.kinds)))
	for _, rtt := range durations(t) {
		for _, r := range named(Roads(rtt), os.Getenv("ROADS")) {
			for _, tr := range someTraffic(t) {
				runs := make([][]carried, len(b.kinds))
				for round := range rounds {
					for i, k := range b.kinds {
						k.relay.Travel([2]*Way{NewWay(r, uint64(round), 0),
							NewWay(r, uint64(round), 1)})
						run, err := b.carry(k, tr, d)
						must(t, err)
						runs[i] = append(runs[i], run)
					}
				}
				fmt.Println(row(rtt, r, tr.name, runs))
			}
		}
	}
}

func (b *bench) names(between string) string {
	var names []string
	for _, k := range b.kinds {
		names = append(names, k.name)
	}
	return strings.Join(names, between)
}

// row formats one of the table: medians, their ratios to the first kind, how many frames were lost
// in each run and by how much the machine had a frame come too late.
func row(rtt time.Duration, r Road, traffic string, runs [][]carried) string {
	var medians, ratios, losses, lags []string
	linux := 0.0
	for i, of := range runs {
		var rates []float64
		var each, lost, lag []string
		for _, run := range of {
			rates = append(rates, run.rate/1e6)
			each = append(each, fmt.Sprintf("%.1f", run.rate/1e6))
			lost = append(lost, fmt.Sprint(run.lost))
			lag = append(lag, fmt.Sprint(run.lag.Milliseconds()))
		}
		m := median(rates)
		medians = append(medians, fmt.Sprintf("%.2f (%s)", m, strings.Join(each, " ")))
		if i == 0 {
			linux = m
		} else {
			ratios = append(ratios, fmt.Sprintf("%.2f", m/linux))
		}
		losses, lags = append(losses, strings.Join(lost, " ")), append(lags, strings.Join(lag, " "))
	}
	return fmt.Sprintf("| %d ms | %s | %s | %s | %s | %s | %s ms |", rtt.Milliseconds(), r.Name,
		traffic, strings.Join(medians, " | "), strings.Join(ratios, ", "),
		strings.Join(losses, ", "), strings.Join(lags, ", "))
}

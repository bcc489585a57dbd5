package stack_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"testing"

	"gvisor.dev/gvisor/pkg/tcpip/link/pipe"

	"github.com/rdma-netstack/rdma-netstack/stack"
)

// piped are two stacks on gVisor's pipe, which delivers in the sender's goroutine: the figures are
// those of this package and netstack, for both ends.
func piped(b *testing.B) (server, client *stack.Stack) {
	x, y := pipe.New("\x02\x00\x00\x00\x00\x0a", "\x02\x00\x00\x00\x00\x0b", 1500)
	open := func(l *pipe.Endpoint, address string) *stack.Stack {
		s, err := stack.New(l,
			stack.Config{Addressing: stack.AddressOptions{DuplicateDetection: -1, NoAnnounce: true},
				Addresses: []netip.Prefix{netip.MustParsePrefix(address)}})
		must(b, err)
		b.Cleanup(func() { s.Close() })
		return s
	}
	return open(x, "192.0.2.1/24"), open(y, "192.0.2.2/24")
}

func BenchmarkHTTP(b *testing.B) {
	for _, conns := range []int{1, 64} {
		b.Run(fmt.Sprint("conns=", conns), func(b *testing.B) {
			server, client := piped(b)
			l, err := server.Listen("tcp", ":80")
			must(b, err)
			go http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter,
				_ *http.Request) {
				io.WriteString(w, "hello")
			}))
			web := client.HTTPClient()
			web.Transport.(*http.Transport).MaxIdleConnsPerHost = conns
			b.ReportAllocs()
			b.SetParallelism(conns)
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					resp, err := web.Get("http://192.0.2.1/")
					if err != nil {
						b.Error(err)
						return
					}
					io.Copy(io.Discard, resp.Body)
					resp.Body.Close()
				}
			})
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "req/s")
		})
	}
}

// BenchmarkHTTPConnection sends each request over a connection of its own.
func BenchmarkHTTPConnection(b *testing.B) {
	server, client := piped(b)
	l, err := server.Listen("tcp", ":80")
	must(b, err)
	go http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, "hello")
	}))
	web := client.HTTPClient()
	web.Transport.(*http.Transport).DisableKeepAlives = true
	b.ReportAllocs()
	for range b.N {
		resp, err := web.Get("http://192.0.2.1/")
		must(b, err)
		_, err = io.Copy(io.Discard, resp.Body)
		must(b, err)
		resp.Body.Close()
	}
}

// BenchmarkPingPong is one byte there and back.
func BenchmarkPingPong(b *testing.B) {
	server, client := piped(b)
	l, err := server.Listen("tcp", ":7")
	must(b, err)
	go func() {
		c, err := l.Accept()
		if err == nil {
			buf := make([]byte, 1)
			for {
				if _, err := c.Read(buf); err != nil {
					return
				}
				c.Write(buf)
			}
		}
	}()
	c, err := client.Dial("tcp", "192.0.2.1:7")
	must(b, err)
	buf := make([]byte, 1)
	b.ReportAllocs()
	for b.Loop() {
		c.Write(buf)
		c.Read(buf)
	}
}

func BenchmarkBulk(b *testing.B) {
	server, client := piped(b)
	l, err := server.Listen("tcp", ":9")
	must(b, err)
	go func() {
		c, err := l.Accept()
		if err == nil {
			io.Copy(io.Discard, c)
		}
	}()
	c, err := client.Dial("tcp", "192.0.2.1:9")
	must(b, err)
	buf := make([]byte, 64<<10)
	b.SetBytes(int64(len(buf)))
	for b.Loop() {
		c.Write(buf)
	}
}

// BenchmarkPacedBulk writes 64 KiB on one of some connections, which have rates of 2 Mbit/s in
// all, or none. Each segment waits for its rate, with a timer: the dearest there is. Compare the
// instructions of both (make instructions); the time is that of the rate.
func BenchmarkPacedBulk(b *testing.B) {
	for _, rate := range []uint64{0, 2e6} {
		for _, conns := range []int{1, 16, 128} {
			b.Run(fmt.Sprintf("Mbit=%d/conns=%d", rate/1e6, conns), func(b *testing.B) {
				server, client := piped(b)
				l, err := server.Listen("tcp", ":9")
				must(b, err)
				go func() {
					for {
						c, err := l.Accept()
						if err != nil {
							return
						}
						go io.Copy(io.Discard, c)
					}
				}()
				var writers sync.WaitGroup
				buf := make([]byte, 64<<10)
				for i := range conns {
					c, err := client.Dial("tcp", "192.0.2.1:9")
					must(b, err)
					c.(*stack.TCPConn).SetPacing(rate / 8 / uint64(conns))
					writers.Go(func() {
						for range (b.N + conns - 1 - i) / conns {
							c.Write(buf)
						}
					})
				}
				writers.Wait()
			})
		}
	}
}

func BenchmarkDial(b *testing.B) {
	server, client := piped(b)
	l, err := server.Listen("tcp", ":9")
	must(b, err)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	}()
	b.ReportAllocs()
	for b.Loop() {
		c, err := client.Dial("tcp", "192.0.2.1:9")
		must(b, err)
		c.(*stack.TCPConn).SetLinger(0) // leave no TIME-WAIT behind
		c.Close()
	}
}

func BenchmarkUDPEcho(b *testing.B) {
	server, client := piped(b)
	p, err := server.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 7})
	must(b, err)
	go func() {
		buf := make([]byte, 64)
		for {
			n, from, err := p.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			p.WriteToUDPAddrPort(buf[:n], from)
		}
	}()
	c, err := client.Dial("udp", "192.0.2.1:7")
	must(b, err)
	buf := make([]byte, 64)
	b.ReportAllocs()
	for b.Loop() {
		c.Write(buf)
		c.Read(buf)
	}
}

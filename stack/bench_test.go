package stack_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
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

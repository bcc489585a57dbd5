// Command uses tries, one after the other, what programs do with package net and its sockets, and
// prints one line for each: its name, and what came of it in a form that is the same on the kernel
// and on a slice. Arguments are the address that it is reached by and that of a host outside, which
// echoes on port 9000 of TCP and of UDP.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

var (
	own, peer string
	echo      string // of the host outside
)

func main() {
	own, peer = os.Args[1], os.Args[2]
	echo = net.JoinHostPort(peer, "9000")
	for _, use := range []struct {
		name string
		try  func() (string, error)
	}{
		{"ListenConfig.Control, TCP", listenOptions},
		{"ListenConfig.Control, UDP", packetOptions},
		{"Dialer.Control", dialOptions},
		{"Dialer.Control fails", controlFails},
		{"options after the fact", laterOptions},
		{"buffers read back", buffersReadBack},
		{"RawConn.Read and Write of TCP", rawTCP},
		{"RawConn.Read of UDP", rawUDP},
		{"TCPConn.File", fileOfConn},
		{"TCPListener.File and FileListener", fileOfListener},
		{"UDPConn.File and FilePacketConn", fileOfPacketConn},
		{"SetLinger", lingers},
		{"KeepAliveConfig", keepsAlive},
		{"multipath TCP", multipath},
		{"ListenMulticastUDP", multicast},
		{"UnixListener", unixSockets},
		{"SO_REUSEPORT", sharedPort},
		{"http.Server on :PORT", serves},
		{"httptest", tests},
		{"net.Pipe", pipes},
		{"Resolver with PreferGo and Dial", resolves},
		{"InterfaceAddrs", interfaceAddrs},
		{"port 0", anyPort},
		{"io.Copy of files", copies},
		{"net.Buffers", buffers},
		{"deadlines", deadlines},
		{"Close ends Read and Accept", closes},
		{"refused, taken, foreign", refusals},
		{"DialTCP from an address", dialsFrom},
		{"connected UDP", connectedUDP},
		{"CloseWrite", halfCloses},
		{"TOS and TTL on localhost", localHeader},
		{"raw ICMP", rawICMP},
	} {
		said := make(chan string, 1)
		go func() {
			text, err := use.try()
			if err != nil {
				text = strings.TrimSpace(text + " error: " + plainError(err))
			}
			said <- text
		}()
		select {
		case text := <-said:
			fmt.Printf("%s: %s\n", use.name, text)
		case <-time.After(20 * time.Second):
			fmt.Printf("%s: hangs\n", use.name)
		}
	}
	fmt.Println("all uses are tried")
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, unix.SIGTERM)
	<-ended
}

// plainError names an error without addresses.
func plainError(err error) string {
	var errno syscall.Errno
	switch {
	case errors.As(err, &errno):
		return unix.ErrnoName(errno)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return "deadline"
	case errors.Is(err, net.ErrClosed):
		return "closed"
	}
	return err.Error()
}

// setting describes an option that is set and read.
type setting struct {
	name               string
	level, option, set int
}

var (
	common = []setting{{"SO_REUSEADDR", unix.SOL_SOCKET, unix.SO_REUSEADDR, 1},
		{"SO_KEEPALIVE", unix.SOL_SOCKET, unix.SO_KEEPALIVE, 0},
		{"SO_PRIORITY", unix.SOL_SOCKET, unix.SO_PRIORITY, 4},
		{"IP_TOS", unix.IPPROTO_IP, unix.IP_TOS, 0x48},
		{"IP_TTL", unix.IPPROTO_IP, unix.IP_TTL, 33},
		{"IP_FREEBIND", unix.IPPROTO_IP, unix.IP_FREEBIND, 1}}
	ofTCP = slices.Concat(common, []setting{
		{"TCP_NODELAY", unix.IPPROTO_TCP, unix.TCP_NODELAY, 0},
		{"TCP_KEEPIDLE", unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, 77},
		{"TCP_KEEPINTVL", unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, 7},
		{"TCP_KEEPCNT", unix.IPPROTO_TCP, unix.TCP_KEEPCNT, 3},
		{"TCP_USER_TIMEOUT", unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, 4321},
		{"TCP_FASTOPEN", unix.IPPROTO_TCP, unix.TCP_FASTOPEN, 5},
		{"TCP_DEFER_ACCEPT", unix.IPPROTO_TCP, unix.TCP_DEFER_ACCEPT, 1},
		{"TCP_QUICKACK", unix.IPPROTO_TCP, unix.TCP_QUICKACK, 1},
		{"TCP_SYNCNT", unix.IPPROTO_TCP, unix.TCP_SYNCNT, 3}})
	ofUDP = slices.Concat(common, []setting{
		{"SO_BROADCAST", unix.SOL_SOCKET, unix.SO_BROADCAST, 1},
		{"IP_PKTINFO", unix.IPPROTO_IP, unix.IP_PKTINFO, 1},
		{"IP_RECVTOS", unix.IPPROTO_IP, unix.IP_RECVTOS, 1},
		{"IP_RECVTTL", unix.IPPROTO_IP, unix.IP_RECVTTL, 1},
		{"IP_MTU_DISCOVER", unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO},
		{"IP_MULTICAST_TTL", unix.IPPROTO_IP, unix.IP_MULTICAST_TTL, 4},
		{"IP_MULTICAST_LOOP", unix.IPPROTO_IP, unix.IP_MULTICAST_LOOP, 0},
		{"UDP_SEGMENT", unix.IPPROTO_UDP, unix.UDP_SEGMENT, 1200},
		{"SO_TIMESTAMP", unix.SOL_SOCKET, unix.SO_TIMESTAMP, 1}})
)

// setAll sets options in a Control function, and keeps what is read there.
func setAll(settings []setting, out *bytes.Buffer) func(_, _ string, c syscall.RawConn) error {
	return func(network, _ string, c syscall.RawConn) error {
		fmt.Fprintf(out, "%s", network)
		return c.Control(func(fd uintptr) {
			for _, s := range settings {
				err := unix.SetsockoptInt(int(fd), s.level, s.option, s.set)
				v, _ := unix.GetsockoptInt(int(fd), s.level, s.option)
				fmt.Fprintf(out, " %s=%d", s.name, v)
				if err != nil {
					fmt.Fprintf(out, "(%s)", plainError(err))
				}
			}
		})
	}
}

// readOptions adds what is read of a socket to out.
func readOptions(out *bytes.Buffer, c syscall.Conn, settings []setting) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	out.WriteString("; then")
	return raw.Control(func(fd uintptr) {
		for _, s := range settings {
			v, err := unix.GetsockoptInt(int(fd), s.level, s.option)
			fmt.Fprintf(out, " %d", v)
			if err != nil {
				fmt.Fprintf(out, "(%s)", plainError(err))
			}
		}
	})
}

func listenOptions() (string, error) {
	var out bytes.Buffer
	lc := net.ListenConfig{Control: setAll(ofTCP, &out)}
	lc.SetMultipathTCP(false) // whose sockets have fewer options
	l, err := lc.Listen(context.Background(), "tcp4", ":8001")
	if err != nil {
		return out.String(), err
	}
	defer l.Close()
	err = readOptions(&out, l.(*net.TCPListener), ofTCP)
	return out.String(), err
}

func packetOptions() (string, error) {
	var out bytes.Buffer
	lc := net.ListenConfig{Control: setAll(ofUDP, &out)}
	c, err := lc.ListenPacket(context.Background(), "udp4", ":8001")
	if err != nil {
		return out.String(), err
	}
	defer c.Close()
	err = readOptions(&out, c.(*net.UDPConn), ofUDP)
	return out.String(), err
}

func dialOptions() (string, error) {
	var out bytes.Buffer
	var to string
	set := setAll(ofTCP, &out)
	d := net.Dialer{ControlContext: func(_ context.Context, network, address string,
		c syscall.RawConn) error {
		to = address
		return set(network, address, c)
	}, KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: time.Minute, Interval: -1}}
	c, err := d.Dial("tcp", echo)
	if err != nil {
		return out.String(), err
	}
	defer c.Close()
	err = errors.Join(readOptions(&out, c.(*net.TCPConn), ofTCP), echoes(c))
	return fmt.Sprint(out.String(), "; the address is ", to == echo), err
}

func controlFails() (string, error) {
	d := net.Dialer{Control: func(string, string, syscall.RawConn) error {
		return io.ErrNoProgress
	}}
	_, err := d.Dial("tcp", echo)
	var op *net.OpError
	return fmt.Sprint(errors.Is(err, io.ErrNoProgress), errors.As(err, &op) && op.Op == "dial"), nil
}

// echoes sends on a stream to an echo and reads that back.
func echoes(c io.ReadWriter) error {
	sent := bytes.Repeat([]byte("0123456789"), 2000)
	done := make(chan error, 1)
	go func() {
		_, err := c.Write(sent)
		done <- err
	}()
	got := make([]byte, len(sent))
	_, err := io.ReadFull(c, got)
	if err == nil && !bytes.Equal(got, sent) {
		err = errors.New("other bytes")
	}
	return errors.Join(err, <-done)
}

func laterOptions() (string, error) {
	c, err := net.Dial("tcp", echo)
	if err != nil {
		return "", err
	}
	defer c.Close()
	t := c.(*net.TCPConn)
	var out bytes.Buffer
	raw, err := t.SyscallConn()
	if err != nil {
		return "", err
	}
	some := ofTCP[1:11] // those of the first set on are of a connection, too
	err = errors.Join(setAll(some, &out)("", "", raw), readOptions(&out, t, some), echoes(c))
	return out.String(), err
}

// buffersReadBack reads buffers that are within the kernel's bounds, as it doubles them.
func buffersReadBack() (string, error) {
	sizes := []setting{{"SO_RCVBUF", unix.SOL_SOCKET, unix.SO_RCVBUF, 0},
		{"SO_SNDBUF", unix.SOL_SOCKET, unix.SO_SNDBUF, 0}}
	var out bytes.Buffer
	t, err := net.Dial("tcp", echo)
	if err != nil {
		return "", err
	}
	defer t.Close()
	u, err := net.ListenPacket("udp4", ":0")
	if err != nil {
		return "", err
	}
	defer u.Close()
	for _, c := range []interface {
		syscall.Conn
		SetReadBuffer(int) error
		SetWriteBuffer(int) error
	}{t.(*net.TCPConn), u.(*net.UDPConn)} {
		err = errors.Join(err, c.SetReadBuffer(100_000), c.SetWriteBuffer(120_000),
			readOptions(&out, c, sizes))
	}
	return out.String(), err
}

func rawTCP() (string, error) {
	c, err := net.Dial("tcp", echo)
	if err != nil {
		return "", err
	}
	defer c.Close()
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		return "", err
	}
	var failed error
	err = raw.Write(func(fd uintptr) bool {
		_, failed = unix.Write(int(fd), []byte("written to a descriptor"))
		return failed != unix.EAGAIN
	})
	if err = errors.Join(err, failed); err != nil {
		return "", err
	}
	var got []byte
	for len(got) < len("written to a descriptor") && err == nil && failed == nil {
		err = raw.Read(func(fd uintptr) bool {
			b := make([]byte, 100)
			var n int
			if n, failed = unix.Read(int(fd), b); failed == unix.EAGAIN {
				failed = nil
				return false
			}
			got = append(got, b[:max(n, 0)]...)
			return true
		})
	}
	return string(got), errors.Join(err, failed)
}

func rawUDP() (string, error) {
	c, err := net.Dial("udp", echo)
	if err != nil {
		return "", err
	}
	defer c.Close()
	if _, err := c.Write([]byte("datagram")); err != nil {
		return "", err
	}
	raw, err := c.(*net.UDPConn).SyscallConn()
	if err != nil {
		return "", err
	}
	b := make([]byte, 100)
	var n int
	var failed error
	err = raw.Read(func(fd uintptr) bool {
		n, failed = unix.Read(int(fd), b)
		return failed != unix.EAGAIN
	})
	return string(b[:max(n, 0)]), errors.Join(err, failed)
}

func fileOfConn() (string, error) {
	c, err := net.Dial("tcp", echo)
	if err != nil {
		return "", err
	}
	defer c.Close()
	f, err := c.(*net.TCPConn).File()
	if err != nil {
		return fmt.Sprint("unsupported: ", errors.Is(err, errors.ErrUnsupported)), err
	}
	return "a file", f.Close()
}

func fileOfListener() (string, error) {
	l, err := net.Listen("tcp4", ":8002")
	if err != nil {
		return "", err
	}
	f, err := l.(*net.TCPListener).File()
	if err != nil {
		return "", errors.Join(err, l.Close())
	}
	again, err := net.FileListener(f)
	if err = errors.Join(err, f.Close(), l.Close()); err != nil {
		return "", err
	}
	defer again.Close()
	go answerOnce(again)
	return dialBack("8002")
}

// answerOnce says hello to one client.
func answerOnce(l net.Listener) {
	if c, err := l.Accept(); err == nil {
		io.WriteString(c, "hello")
		c.Close()
	}
}

// dialBack asks this program at localhost.
func dialBack(port string) (string, error) {
	c, err := net.Dial("tcp", "localhost:"+port)
	if err != nil {
		return "", err
	}
	defer c.Close()
	b, err := io.ReadAll(c)
	return string(b), err
}

func fileOfPacketConn() (string, error) {
	c, err := net.ListenPacket("udp4", ":8003")
	if err != nil {
		return "", err
	}
	f, err := c.(*net.UDPConn).File()
	if err != nil {
		return "", errors.Join(err, c.Close())
	}
	again, err := net.FilePacketConn(f)
	if err = errors.Join(err, f.Close(), c.Close()); err != nil {
		return "", err
	}
	defer again.Close()
	return echoedDatagram(again)
}

// echoedDatagram sends a datagram to the echo and reads it.
func echoedDatagram(c net.PacketConn) (string, error) {
	to, err := net.ResolveUDPAddr("udp", echo)
	if err != nil {
		return "", err
	}
	b := make([]byte, 100)
	_, err = c.WriteTo([]byte("datagram"), to)
	if err != nil {
		return "", err
	}
	n, from, err := c.ReadFrom(b)
	return fmt.Sprint(string(b[:n]), " from ", from), err
}

func lingers() (string, error) {
	var text string
	for _, sec := range []int{-1, 0, 1} {
		c, err := net.Dial("tcp", echo)
		if err != nil {
			return text, err
		}
		err = errors.Join(c.(*net.TCPConn).SetLinger(sec), echoes(c), c.Close())
		text += fmt.Sprint(sec, " ", err, " ")
	}
	return text, nil
}

func keepsAlive() (string, error) {
	c, err := net.Dial("tcp", echo)
	if err != nil {
		return "", err
	}
	defer c.Close()
	t := c.(*net.TCPConn)
	var out bytes.Buffer
	parts := []setting{{"SO_KEEPALIVE", unix.SOL_SOCKET, unix.SO_KEEPALIVE, 0},
		{"TCP_KEEPIDLE", unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, 0},
		{"TCP_KEEPINTVL", unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, 0},
		{"TCP_KEEPCNT", unix.IPPROTO_TCP, unix.TCP_KEEPCNT, 0}}
	err = errors.Join(readOptions(&out, t, parts),
		t.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: 30 * time.Second,
			Interval: 10 * time.Second, Count: 4}), readOptions(&out, t, parts),
		t.SetKeepAlivePeriod(time.Minute), readOptions(&out, t, parts),
		t.SetKeepAlive(false), readOptions(&out, t, parts))
	return out.String(), err
}

func multipath() (string, error) {
	lc := net.ListenConfig{}
	lc.SetMultipathTCP(true)
	l, err := lc.Listen(context.Background(), "tcp4", ":8004")
	if err != nil {
		return "", err
	}
	defer l.Close()
	go answerOnce(l)
	got, err := dialBack("8004")
	if err != nil {
		return got, err
	}
	d := net.Dialer{}
	d.SetMultipathTCP(true)
	c, err := d.Dial("tcp", echo) // which has plain TCP
	if err != nil {
		return got, err
	}
	defer c.Close()
	used, err := c.(*net.TCPConn).MultipathTCP()
	return fmt.Sprint(got, " ", used), errors.Join(err, echoes(c))
}

func multicast() (string, error) {
	ifi, err := net.InterfaceByName("eth0")
	if err != nil {
		return "", err
	}
	group := &net.UDPAddr{IP: net.IPv4(239, 1, 2, 3), Port: 8005}
	c, err := net.ListenMulticastUDP("udp4", ifi, group)
	if err != nil {
		return "", err
	}
	defer c.Close()
	u, err := net.Dial("udp", echo)
	if err != nil {
		return "", err
	}
	defer u.Close()
	// The echo sends to the group what begins with "group".
	if _, err := u.Write([]byte("group 239.1.2.3:8005")); err != nil {
		return "", err
	}
	b := make([]byte, 100)
	n, _, err := c.ReadFromUDP(b)
	return string(b[:n]), err
}

func unixSockets() (string, error) {
	dir, err := os.MkdirTemp("", "uses")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	at := filepath.Join(dir, "socket")
	l, err := net.Listen("unix", at)
	if err != nil {
		return "", err
	}
	defer l.Close()
	go answerOnce(l)
	c, err := net.Dial("unix", at)
	if err != nil {
		return "", err
	}
	defer c.Close()
	b, err := io.ReadAll(c)
	if err != nil {
		return "", err
	}
	f, err := l.(*net.UnixListener).File()
	if err == nil {
		err = f.Close()
	}
	p, perr := net.ListenPacket("unixgram", at+".gram")
	if perr == nil {
		perr = p.Close()
	}
	return string(b), errors.Join(err, perr)
}

func sharedPort() (string, error) {
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		return errors.Join(c.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
		}), err)
	}}
	var all []io.Closer
	for range 2 {
		l, err := lc.Listen(context.Background(), "tcp4", ":8006")
		if err != nil {
			return "", err
		}
		go answerOnce(l)
		p, err := lc.ListenPacket(context.Background(), "udp4", ":8006")
		if err != nil {
			return "", err
		}
		all = append(all, l, p)
	}
	text, err := dialBack("8006")
	_, other := net.Listen("tcp4", ":8006")
	text += ", another: " + plainError(other)
	for _, c := range all {
		err = errors.Join(err, c.Close())
	}
	return text, err
}

func serves() (string, error) {
	srv := &http.Server{Addr: ":8007", Handler: http.HandlerFunc(
		func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.Proto) })}
	ended := make(chan error, 1)
	go func() { ended <- srv.ListenAndServe() }()
	var text string
	for _, host := range []string{"127.0.0.1", "[::1]", "localhost", ""} {
		got, err := getSoon("http://" + host + ":8007/")
		if err != nil {
			return text, err
		}
		text += got + " "
	}
	err := srv.Shutdown(context.Background())
	return text, errors.Join(err, expect(<-ended, http.ErrServerClosed))
}

// getSoon asks a server that may not listen yet.
func getSoon(url string) (text string, err error) {
	for range 100 {
		r, failed := http.Get(url)
		if err = failed; err == nil {
			defer r.Body.Close()
			b, err := io.ReadAll(r.Body)
			return string(b), err
		}
		time.Sleep(20 * time.Millisecond)
	}
	return "", err
}

func expect(err, want error) error {
	if errors.Is(err, want) {
		return nil
	}
	return fmt.Errorf("%v, want %v", err, want)
}

func tests() (string, error) {
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, _, _ := net.SplitHostPort(r.RemoteAddr)
		fmt.Fprint(w, r.Proto, " from ", host)
	})
	plain, secure := httptest.NewServer(h), httptest.NewUnstartedServer(h)
	defer plain.Close()
	secure.EnableHTTP2 = true
	secure.StartTLS()
	defer secure.Close()
	var text string
	for _, s := range []*httptest.Server{plain, secure} {
		r, err := s.Client().Get(s.URL)
		if err != nil {
			return text, err
		}
		b, err := io.ReadAll(r.Body)
		r.Body.Close()
		if text += string(b) + " "; err != nil {
			return text, err
		}
	}
	return text, nil
}

func pipes() (string, error) {
	a, b := net.Pipe()
	go func() {
		io.WriteString(a, "through a pipe")
		a.Close()
	}()
	got, err := io.ReadAll(b)
	return string(got), err
}

func resolves() (string, error) {
	r := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network,
		_ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, network, net.JoinHostPort(peer, "53"))
	}}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	all, err := r.LookupHost(ctx, "a.example")
	return fmt.Sprint(all), err
}

func interfaceAddrs() (string, error) {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return "", err
	}
	has := func(addrs []net.Addr) bool {
		return slices.ContainsFunc(addrs, func(a net.Addr) bool {
			n, ok := a.(*net.IPNet)
			return ok && n.IP.String() == own
		})
	}
	ifi, err := net.InterfaceByName("eth0")
	if err != nil {
		return "", err
	}
	its, err := ifi.Addrs()
	return fmt.Sprint("own address among all: ", has(all), ", eth0's: ", has(its)), err
}

func anyPort() (string, error) {
	l, err := net.Listen("tcp4", ":0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	c, err := net.ListenPacket("udp4", ":0")
	if err != nil {
		return "", err
	}
	defer c.Close()
	return fmt.Sprint(l.Addr().(*net.TCPAddr).Port > 0, " ", c.LocalAddr().(*net.UDPAddr).Port > 0,
		" ", l.Addr().Network(), " ", strings.HasPrefix(l.Addr().String(), "0.0.0.0:")), nil
}

func copies() (string, error) {
	f, err := os.CreateTemp("", "uses")
	if err != nil {
		return "", err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	sent := bytes.Repeat([]byte("0123456789abcdef"), 20_000)
	if _, err := f.Write(sent); err != nil {
		return "", err
	}
	c, err := net.Dial("tcp", echo)
	if err != nil {
		return "", err
	}
	defer c.Close()
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return "", err
	}
	back := make(chan error, 1)
	to, err := os.CreateTemp("", "uses")
	if err != nil {
		return "", err
	}
	defer os.Remove(to.Name())
	defer to.Close()
	go func() {
		_, err := io.Copy(to, c)
		back <- err
	}()
	n, err := io.Copy(c, f)
	err = errors.Join(err, c.(*net.TCPConn).CloseWrite(), <-back)
	if err != nil {
		return "", err
	}
	got, err := os.ReadFile(to.Name())
	return fmt.Sprint(n, " ", bytes.Equal(got, sent)), err
}

func buffers() (string, error) {
	c, err := net.Dial("tcp", echo)
	if err != nil {
		return "", err
	}
	defer c.Close()
	b := net.Buffers{[]byte("several "), []byte("buffers "), bytes.Repeat([]byte("x"), 30_000)}
	n, err := b.WriteTo(c)
	if err != nil {
		return "", err
	}
	got := make([]byte, n)
	_, err = io.ReadFull(c, got)
	return fmt.Sprint(n, " ", string(got[:20]), " ", len(b)), err
}

func deadlines() (string, error) {
	c, err := net.Dial("tcp", echo)
	if err != nil {
		return "", err
	}
	defer c.Close()
	u, err := net.ListenPacket("udp4", ":0")
	if err != nil {
		return "", err
	}
	defer u.Close()
	l, err := net.Listen("tcp4", ":0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	soon := time.Now().Add(20 * time.Millisecond)
	err = errors.Join(c.SetReadDeadline(soon), u.SetDeadline(soon),
		l.(*net.TCPListener).SetDeadline(soon))
	_, one := c.Read(make([]byte, 1))
	_, _, two := u.ReadFrom(make([]byte, 1))
	_, three := l.Accept()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, four := new(net.Dialer).DialContext(ctx, "tcp", echo)
	text := ""
	for _, e := range []error{one, two, three, four} {
		var n net.Error
		text += fmt.Sprint(plainError(e), " ", errors.As(e, &n) && n.Timeout(), ", ")
	}
	return text, errors.Join(err, c.SetReadDeadline(time.Time{}), echoes(c))
}

func closes() (string, error) {
	c, err := net.Dial("tcp", echo)
	if err != nil {
		return "", err
	}
	l, err := net.Listen("tcp4", ":8008")
	if err != nil {
		return "", err
	}
	u, err := net.ListenPacket("udp4", ":8008")
	if err != nil {
		return "", err
	}
	errs := make(chan error, 3)
	go func() { _, err := c.Read(make([]byte, 1)); errs <- err }()
	go func() { _, err := l.Accept(); errs <- err }()
	go func() { _, _, err := u.ReadFrom(make([]byte, 1)); errs <- err }()
	time.Sleep(50 * time.Millisecond) // mostly they wait then; it is right if they do not
	err = errors.Join(c.Close(), l.Close(), u.Close())
	text := ""
	for range 3 {
		text += plainError(<-errs) + " "
	}
	return text + plainError(c.Close()), err
}

func refusals() (string, error) {
	_, one := net.Dial("tcp", net.JoinHostPort(peer, "9"))
	l, err := net.Listen("tcp4", ":8009")
	if err != nil {
		return "", err
	}
	defer l.Close()
	_, two := net.Listen("tcp4", ":8009")
	_, three := net.Listen("tcp4", "192.0.2.99:8009")
	_, four := net.Dial("tcp4", "[2001:db8::1]:80")
	_, five := net.Listen("tcp", ":99999")
	return fmt.Sprint(plainError(one), " ", plainError(two), " ", plainError(three), " ",
		plainError(four), " ", plainError(five)), nil
}

func dialsFrom() (string, error) {
	to, err := net.ResolveTCPAddr("tcp", echo)
	if err != nil {
		return "", err
	}
	c, err := net.DialTCP("tcp", &net.TCPAddr{IP: net.ParseIP(own), Port: 18000}, to)
	if err != nil {
		return "", err
	}
	defer c.Close()
	return fmt.Sprint(c.LocalAddr().String() == net.JoinHostPort(own, "18000")), echoes(c)
}

func connectedUDP() (string, error) {
	c, err := net.Dial("udp", echo)
	if err != nil {
		return "", err
	}
	defer c.Close()
	u := c.(*net.UDPConn)
	if _, _, err := u.WriteMsgUDP([]byte("message"), nil, nil); err != nil {
		return "", err
	}
	b, oob := make([]byte, 100), make([]byte, 100)
	n, oobn, _, from, err := u.ReadMsgUDP(b, oob)
	if err != nil {
		return "", err
	}
	_, other := u.WriteTo([]byte("x"), &net.UDPAddr{IP: net.ParseIP(peer), Port: 1})
	host, _, _ := net.SplitHostPort(c.LocalAddr().String())
	return fmt.Sprint(string(b[:n]), " ", oobn, " from ", from, "; own address: ", host == own,
		"; WriteTo: ", errors.Is(other, net.ErrWriteToConnected)), nil
}

func halfCloses() (string, error) {
	c, err := net.Dial("tcp", echo)
	if err != nil {
		return "", err
	}
	defer c.Close()
	if _, err := io.WriteString(c, "half"); err != nil {
		return "", err
	}
	err = c.(*net.TCPConn).CloseWrite()
	got, rerr := io.ReadAll(c)
	_, werr := c.Write([]byte("more"))
	return fmt.Sprint(string(got), " ", plainError(werr)), errors.Join(err, rerr)
}

func rawICMP() (string, error) {
	c, err := net.ListenPacket("ip4:icmp", "0.0.0.0")
	if err != nil {
		return "", err
	}
	return "a socket", c.Close()
}

// localHeader sends datagrams on localhost to a socket on any address, and back.
func localHeader() (string, error) {
	c, err := net.ListenPacket("udp4", ":8010")
	if err != nil {
		return "", err
	}
	defer c.Close()
	d, err := net.Dial("udp4", "127.0.0.1:8010")
	if err != nil {
		return "", err
	}
	defer d.Close()
	here, there := c.(*net.UDPConn), d.(*net.UDPConn)
	report := map[int]int{unix.IP_RECVTOS: 1, unix.IP_RECVTTL: 1}
	err = errors.Join(setIP(here, report), setIP(there, report),
		setIP(there, map[int]int{unix.IP_TOS: 0x2a, unix.IP_TTL: 9}))
	if err != nil {
		return "", err
	}
	if _, err := there.Write([]byte("to any address")); err != nil {
		return "", err
	}
	text, from, err := readHeader(here)
	if err != nil {
		return text, err
	}
	for range 2 {
		if _, err := here.WriteTo([]byte("back"), from); err != nil {
			return text, err
		}
		answer, _, err := readHeader(there)
		if text += "; " + answer; err != nil {
			return text, err
		}
		err = setIP(here, map[int]int{unix.IP_TOS: 0x48, unix.IP_TTL: 7})
		if err != nil {
			return text, err
		}
	}
	return text, nil
}

// setIP sets options of level IPPROTO_IP.
func setIP(c *net.UDPConn, options map[int]int) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		for name, v := range options {
			failed = errors.Join(failed, unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, name, v))
		}
	})
	return errors.Join(err, failed)
}

// readHeader reads a datagram and says what its control messages are.
func readHeader(c *net.UDPConn) (text string, from *net.UDPAddr, err error) {
	b, oob := make([]byte, 100), make([]byte, 100)
	n, oobn, _, from, err := c.ReadMsgUDP(b, oob)
	if err != nil {
		return "", nil, err
	}
	text = string(b[:n])
	ms, err := unix.ParseSocketControlMessage(oob[:oobn])
	for _, m := range ms {
		text += fmt.Sprintf(" %d=%d", m.Header.Type, m.Data[0])
	}
	return text, from, err
}

package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/simnic/frame"
	"github.com/rdma-netstack/rdma-netstack/simnic/wire"
	"github.com/rdma-netstack/rdma-netstack/stack"
	"github.com/rdma-netstack/rdma-netstack/stack/admin"
)

// putCard shows report a device with a netdev among files, and what else is given.
func (w *sickWorld) putCard(device, netdev string, files map[string]string) {
	w.t.Helper()
	w.around.Root = w.t.TempDir()
	dir := "sys/class/infiniband/" + device + "/device/"
	all := map[string]string{dir + "net/" + netdev + "/ifindex": "2"}
	for name, text := range files {
		all[strings.Replace(name, "card/", dir, 1)] = text
	}
	for name, text := range all {
		path := filepath.Join(w.around.Root, name)
		err := os.MkdirAll(filepath.Dir(path), 0o755)
		if err == nil {
			err = os.WriteFile(path, []byte(text+"\n"), 0o644)
		}
		if err != nil {
			w.t.Fatal(err)
		}
	}
}

// farFromCard puts the card at a node whose processors the process may not use.
func farFromCard(w *sickWorld) {
	w.putCard("mlx5_sim0", "sim0", map[string]string{
		"card/numa_node":                        "1",
		"sys/devices/system/node/node1/cpulist": "4096-4103",
		"proc/" + strconv.Itoa(os.Getpid()) + "/status": "Name:\ttest\nCpus_allowed_list:\t0-" +
			strconv.Itoa(runtime.NumCPU()-1),
	})
}

// cardBeside makes the server's interface belong to a card.
func cardBeside(w *sickWorld) { w.putCard("mlx5_0", "veth0", nil) }

// cardOfServer makes the card visible that the server's rings are of.
func cardOfServer(w *sickWorld) { w.putCard("mlx5_sim0", "sim0", nil) }

// pausePort pauses the port 20 times while the server sends; the port counts a frame each.
func pausePort(w *sickWorld) {
	peer, err := w.client.ListenPacket("udp", "192.0.2.1:9999")
	if err != nil {
		w.t.Fatal(err)
	}
	defer peer.Close()
	conn, err := w.server.Dial("udp", "192.0.2.1:9999")
	if err != nil {
		w.t.Fatal(err)
	}
	defer conn.Close()
	const pauses = 20
	for range pauses {
		pause := w.nic.Inject(simnic.QueueFault{Kind: simnic.FaultPause})
		if _, err := conn.Write([]byte("held back")); err != nil {
			w.t.Fatal(err)
		}
		for deadline := time.Now().Add(time.Minute); pause.Hits() == 0; runtime.Gosched() {
			if time.Now().After(deadline) {
				w.t.Fatal("no send queue was paused")
			}
		}
		pause.Remove()
		w.paused.Add(1)
	}
}

// leaveSums makes the kernel send 4 MiB whose checksums no NIC has verified.
func leaveSums(w *sickWorld) {
	accepted, conn := w.connect()
	go func() {
		conn.Write(make([]byte, 4<<20))
		conn.Close()
	}()
	if _, err := io.Copy(io.Discard, accepted); err != nil {
		w.t.Fatal(err)
	}
}

// connect connects a client to the server.
func (w *sickWorld) connect() (accepted, client net.Conn) {
	w.t.Helper()
	if w.listener == nil {
		ln, err := w.server.Listen("tcp", "192.0.2.10:80")
		if err != nil {
			w.t.Fatal(err)
		}
		w.t.Cleanup(func() { ln.Close() })
		w.listener = ln
	}
	dial := w.client.DialContext
	if w.kernel != nil {
		dial = w.kernel.DialContext
	}
	client, err := dial(w.t.Context(), "tcp", "192.0.2.10:80")
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { client.Close() })
	if accepted, err = w.listener.Accept(); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { accepted.Close() })
	return accepted, client
}

// withoutLSO describes a NIC that does not segment.
func withoutLSO() simnic.Caps {
	caps := simnic.DefaultCaps()
	caps.MaxLSO = 0
	return caps
}

// sendInBulk sends datagrams to a group until the test ends. Nobody takes a processor to receive
// them.
func sendInBulk(w *sickWorld) {
	conn, err := w.server.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(192, 0, 2, 10), Port: 99})
	if err != nil {
		w.t.Fatal(err)
	}
	var senders sync.WaitGroup
	w.t.Cleanup(func() { conn.Close(); senders.Wait() })
	all := make([]stack.Message, 16)
	for i := range all {
		all[i] = stack.Message{Buffers: [][]byte{make([]byte, 800)}, // more than half an MTU
			Addr: &net.UDPAddr{IP: net.IPv4(239, 1, 1, 1), Port: 9999}}
	}
	for range 2 {
		messages := slices.Clone(all)
		senders.Go(func() {
			for err := error(nil); err == nil; {
				_, err = conn.WriteBatch(messages, 0)
			}
		})
	}
}

// awaitBulk waits until the server has sent more packets a second than are worth a line.
func awaitBulk(w *sickWorld) {
	sent := func() (n uint64, at time.Time) {
		c := admin.Count(w.server)
		for name, value := range c.Counters {
			if strings.HasPrefix(name, "tx") && strings.HasSuffix(name, "_packets") {
				n += value
			}
		}
		return n, c.Time
	}
	first, from := sent()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		n, at := sent()
		if seconds := at.Sub(from).Seconds(); n > first+3000 && float64(n-first) > 1100*seconds {
			return
		}
		if time.Now().After(deadline) {
			w.t.Fatalf("%d packets in %v", n-first, at.Sub(from))
		}
	}
}

// fillSendBuffer sends a client far away as much at a time as a small buffer holds.
func fillSendBuffer(w *sickWorld) {
	accepted, client := w.connect()
	if err := accepted.(*stack.TCPConn).SetWriteBuffer(8 << 10); err != nil {
		w.t.Fatal(err)
	}
	go io.Copy(accepted, zeros{})
	go io.Copy(io.Discard, client)
	awaitFullSendBuffer(w)
}

// awaitFullSendBuffer waits until the whole buffer has just been sent: a round-trip time is left in
// which nothing changes. Between an acknowledgement and that the buffer is not full, for a moment
// that nobody may see.
func awaitFullSendBuffer(w *sickWorld) {
	look := func() (full bool, acked uint64) {
		for _, s := range w.server.Sockets() {
			if t := s.TCP; t != nil && t.SndBuf > 0 && s.State == "ESTAB" {
				return s.SendQ*10 >= t.SndBuf*8 && min(t.Unacked*t.MSS, s.SendQ)*10 >= s.SendQ*9,
					t.BytesAcked
			}
		}
		return false, 0
	}
	_, before := look()
	for deadline := time.Now().Add(time.Minute); ; runtime.Gosched() {
		if full, acked := look(); full && acked > before {
			return
		}
		if time.Now().After(deadline) {
			w.t.Fatalf("the send buffer is never full, or always: %+v", w.server.Sockets())
		}
	}
}

// cutWire carries nothing while its world's cable is cut.
type cutWire struct {
	wire.Wire
	w *sickWorld
}

func cuttable(w *sickWorld, near wire.Wire) wire.Wire { return cutWire{near, w} }

func (c cutWire) Send(frames []frame.Frame) (int, error) {
	if c.w.cut.Load() {
		return len(frames), nil
	}
	return c.Wire.Send(frames)
}

// losePath takes the path away while 16 answers are sent, until timers tell.
func losePath(w *sickWorld) {
	const answers = 16
	var clients []net.Conn
	var accepted []net.Conn
	for range answers {
		a, c := w.connect()
		accepted, clients = append(accepted, a), append(clients, c)
	}
	w.cut.Store(true)
	for _, a := range accepted {
		if _, err := a.Write(make([]byte, 1000)); err != nil {
			w.t.Fatal(err)
		}
	}
	w.await("tcp_timeouts", answers)
	w.cut.Store(false)
	for _, c := range clients {
		if _, err := io.ReadFull(c, make([]byte, 1000)); err != nil {
			w.t.Fatal(err)
		}
	}
}

// lateWire holds one of ten segments with new data back, until it is sent again: the peer then has
// it twice.
type lateWire struct {
	wire.Wire
	mu   sync.Mutex // covers what follows
	seen int
	top  uint32 // the last new one's sequence number
	held []byte // nil: none is
	seq  uint32 // of held
}

func lateSegments(_ *sickWorld, near wire.Wire) wire.Wire { return &lateWire{Wire: near} }

// Offloads leaves no segmentation to the wire.
func (*lateWire) Offloads() frame.Offload { return 0 }

func (l *lateWire) Send(frames []frame.Frame) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, f := range frames {
		const atProto, atSeq, headers = 23, 38, 66
		data := len(f.Data) > headers+1000 && f.Data[atProto] == 6
		seq := uint32(0)
		if data {
			seq = binary.BigEndian.Uint32(f.Data[atSeq:])
		}
		if data && (l.seen == 0 || int32(seq-l.top) > 0) {
			l.top = seq
			if l.seen++; l.seen%10 == 0 && l.held == nil {
				l.held, l.seq = bytes.Clone(f.Data), seq
				continue
			}
		}
		if _, err := l.Wire.Send(frames[i : i+1]); err != nil {
			return i, err
		}
		if data && l.held != nil && int32(seq-l.seq) <= 0 {
			late := []frame.Frame{{Data: l.held}}
			l.held = nil
			if _, err := l.Wire.Send(late); err != nil {
				return i + 1, err
			}
		}
	}
	return len(frames), nil
}

// sendLate sends 8 MiB to a kernel with a buffer for some 100 segments.
func sendLate(w *sickWorld) {
	accepted, client := w.connect()
	if err := client.(*net.TCPConn).SetReadBuffer(128 << 10); err != nil {
		w.t.Fatal(err)
	}
	const size = 8 << 20
	go func() {
		accepted.Write(make([]byte, size))
		accepted.Close()
	}()
	if n, err := io.Copy(io.Discard, client); n != size || err != nil {
		w.t.Fatalf("%d bytes came: %v", n, err)
	}
}

// twoQueues returns two receive queues, each with a large ring.
func twoQueues() dv.NIC {
	return dv.NIC{RxQueues: 2, Rings: dv.Rings{RxQueueSize: 8192}}
}

// manyRules makes a worker take some time for each datagram: it looks one by one at the rules of
// its port that ask for another destination.
func manyRules() string {
	var b strings.Builder
	b.WriteString("chain input {\n policy drop;\n")
	for i := range 2000 {
		fmt.Fprintf(&b, " ip daddr 198.51.%d.%d udp dport 9999 accept\n", i/200, i%200)
	}
	return b.String() + "}"
}

// floodOneFlow sends datagrams of one flow until the test ends: as many as keep its worker at work,
// less than its ring holds.
func floodOneFlow(w *sickWorld) {
	burst := make([]frame.Frame, 500)
	for i := range burst {
		burst[i] = udpFrame(9999, 100)
	}
	stop, ended := make(chan struct{}), make(chan struct{})
	w.t.Cleanup(func() { close(stop); <-ended })
	go func() {
		defer close(ended)
		for sent := uint64(0); ; {
			select {
			case <-stop:
				return
			default:
			}
			if sent-w.server.LinkStats().RxFiltered > 6000 {
				time.Sleep(time.Millisecond)
				continue
			}
			n, err := w.far.Send(burst)
			if sent += uint64(n); err != nil {
				w.t.Error(err)
				return
			}
		}
	}()
	w.await("link_rx_filtered", 100)
}

// awaitFlood waits until some of it has come.
func awaitFlood(w *sickWorld) {
	w.await("link_rx_filtered", w.server.LinkStats().RxFiltered+2000)
}

package dnsd

import (
	"net"
	"sync"
	"sync/atomic"

	"golang.org/x/net/ipv4"

	"github.com/rdma-netstack/rdma-netstack/stack/packets"
)

// batchSize gives the most queries that are read, and then answered, at once.
const batchSize = 32

// batchConn has the methods of conns that move many datagrams at once, those of PacketConn in
// golang.org/x/net/ipv4: this project's, or x/net's on a socket of the kernel.
type batchConn interface {
	ReadBatch(ms []ipv4.Message, flags int) (int, error)
	WriteBatch(ms []ipv4.Message, flags int) (int, error)
}

// batch holds the queries of one read and their answers. Query and answer i each have their memory
// i.
type batch struct {
	queries, answers [batchSize]ipv4.Message
	n                int // answers to be sent
	query            [batchSize][maxQuery]byte
	answer           [batchSize][udpSize]byte
	addrs            [batchSize]net.UDPAddr
	ips              [batchSize][net.IPv6len]byte
}

func newBatch() *batch {
	b := new(batch)
	for i := range batchSize {
		b.queries[i].Buffers, b.answers[i].Buffers = [][]byte{b.query[i][:]}, make([][]byte, 1)
	}
	return b
}

// offerAddrs makes ReadBatch put addresses into the batch's memory, if the conn supports that: the
// conn looks for an empty IP with capacity for an address.
func (b *batch) offerAddrs() {
	for i := range b.queries {
		b.addrs[i].IP = b.ips[i][:0]
		b.queries[i].Addr = &b.addrs[i]
	}
}

// runBatches does what run does, for a conn that moves many datagrams at once.
func (w *udpWorker) runBatches(conn batchConn) error {
	b := newBatch()
	for {
		b.offerAddrs()
		n, err := conn.ReadBatch(b.queries[:], 0)
		if err != nil {
			return err
		}
		w.s.counters.udp.Add(uint64(n))
		for i := range b.queries[:n] {
			w.out = b.answer[b.n][:]
			w.answerMessage(b, &b.queries[i])
		}
		w.s.counters.addTally(&w.tally)
		w.sendBatch(conn, b)
	}
}

// answerMessage adds the answer to a query to the batch, if there is one to send now.
func (w *udpWorker) answerMessage(b *batch, query *ipv4.Message) {
	from := asker{addr: query.Addr}
	if a, ok := query.Addr.(*net.UDPAddr); ok {
		from = asker{addrPort: a.AddrPort()}
	}
	if answer := w.answerQuery(query.Buffers[0][:query.N], from); answer != nil {
		w.tally.countSent(&w.s.counters, answer)
		m := &b.answers[b.n]
		m.Buffers[0], m.Addr = answer, query.Addr
		b.n++
	}
}

// sendBatch sends the answers; it skips one that the conn refuses.
func (w *udpWorker) sendBatch(conn batchConn, b *batch) {
	for sent := 0; sent < b.n; {
		n, err := conn.WriteBatch(b.answers[sent:b.n], 0)
		if sent += n; err != nil {
			w.s.counters.writeErrors.Add(1)
			sent++
		}
	}
	b.n = 0
}

// packetConn has the method of conns that call a handler where datagrams are received: this
// project's.
type packetConn interface{ ServePackets(packets.Handler) error }

// packetWorkers answers where queries are received: for each shard of the conn there is a worker,
// which has no goroutine.
type packetWorkers struct {
	s        *Server
	conn     *udpConn
	forwards *sync.WaitGroup
	workers  [maxWorkers]atomic.Pointer[udpWorker] // by shard; nil: none yet
}

// maxWorkers says how many shards have a worker of their own; others make one for each batch.
const maxWorkers = 256

func newPacketWorkers(s *Server, conn *udpConn, forwards *sync.WaitGroup) *packetWorkers {
	return &packetWorkers{s: s, conn: conn, forwards: forwards}
}

// workerOf returns that of a shard, whose calls follow each other.
func (p *packetWorkers) workerOf(shard int) *udpWorker {
	if shard < maxWorkers {
		if w := p.workers[shard].Load(); w != nil {
			return w
		}
	}
	w := &udpWorker{s: p.s, conn: p.conn, forwards: p.forwards}
	if shard < maxWorkers {
		p.workers[shard].Store(w)
	}
	return w
}

// answerPackets implements packets.Handler.
func (p *packetWorkers) answerPackets(shard int, queries []packets.Packet) {
	w := p.workerOf(shard)
	p.s.counters.udp.Add(uint64(len(queries)))
	for i := range queries {
		q := &queries[i]
		w.out = q.Reply[:cap(q.Reply)]
		q.Reply = w.answerQuery(q.Payload, asker{addrPort: q.From})
		if q.Reply != nil {
			w.tally.countSent(&p.s.counters, q.Reply)
		}
	}
	p.s.counters.addTally(&w.tally)
	w.out = nil
}

package dnsd

import (
	"net"

	"golang.org/x/net/ipv4"
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
		w.s.counters.countSent(answer)
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

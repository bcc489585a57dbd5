package dnsd

import (
	"net"

	"golang.org/x/net/ipv4"
)

// batchSize is how many queries are read, and then answered, at once at most.
const batchSize = 32

// batchConn is what conns offer that move many datagrams at once, with the methods of PacketConn in
// golang.org/x/net/ipv4: this project's, or x/net's around a socket of the kernel.
type batchConn interface {
	ReadBatch(ms []ipv4.Message, flags int) (int, error)
	WriteBatch(ms []ipv4.Message, flags int) (int, error)
}

// batch is the queries of one read and their answers. Message i of either kind has memory i.
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

// offerAddrs has ReadBatch put addresses into the batch's memory, if the conn can do that: it looks
// for an empty IP with room for an address.
func (b *batch) offerAddrs() {
	for i := range b.queries {
		b.addrs[i].IP = b.ips[i][:0]
		b.queries[i].Addr = &b.addrs[i]
	}
}

// runBatches is run for a conn that moves many datagrams at once.
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

// answerMessage puts the answer to a query, if there is one to be sent now, into the batch.
func (w *udpWorker) answerMessage(b *batch, query *ipv4.Message) {
	from := asker{addr: query.Addr}
	if a, ok := query.Addr.(*net.UDPAddr); ok {
		from = asker{addrPort: a.AddrPort()}
	}
	if answer := w.answer(query.Buffers[0][:query.N], from); answer != nil {
		w.s.counters.sent(answer)
		m := &b.answers[b.n]
		m.Buffers[0], m.Addr = answer, query.Addr
		b.n++
	}
}

// sendBatch sends the answers; one that the conn does not take is left out.
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

package dnsd

import "net/netip"

// batchSize is how many queries are read, and then answered, at once at most.
const batchSize = 32

// batchConn is what conns offer that move many datagrams at once: ours. ReadBatchAddrPort waits for one datagram, takes what has arrived, cuts
// each buffer to what it got, and returns how many; WriteBatchAddrPort returns how many it sent, and the error of the next one.
type batchConn interface {
	ReadBatchAddrPort(bufs [][]byte, from []netip.AddrPort) (int, error)
	WriteBatchAddrPort(bufs [][]byte, to []netip.AddrPort) (int, error)
}

// batch is the queries of one read and their answers.
type batch struct {
	in, out  [batchSize][]byte
	from, to [batchSize]netip.AddrPort
	n        int // answers
	memory   [batchSize][udpSize]byte
}

// runBatches is run for a conn that moves many datagrams at once.
func (w *udpWorker) runBatches(conn batchConn) error {
	b := new(batch)
	for i := range b.in {
		b.in[i] = make([]byte, maxQuery)
	}
	for {
		n, err := conn.ReadBatchAddrPort(b.in[:], b.from[:])
		if err != nil {
			return err
		}
		w.s.counters.udp.Add(uint64(n))
		for i := range n {
			w.out = b.memory[b.n][:]
			if answer := w.answer(b.in[i], asker{addrPort: b.from[i]}); answer != nil {
				w.s.counters.sent(answer)
				b.out[b.n], b.to[b.n] = answer, b.from[i]
				b.n++
			}
		}
		w.sendBatch(conn, b)
	}
}

// sendBatch sends the answers; one that the conn does not take is left out.
func (w *udpWorker) sendBatch(conn batchConn, b *batch) {
	for sent := 0; sent < b.n; {
		n, err := conn.WriteBatchAddrPort(b.out[sent:b.n], b.to[sent:b.n])
		if sent += n; err != nil {
			w.s.counters.writeErrors.Add(1)
			sent++
		}
	}
	b.n = 0
}

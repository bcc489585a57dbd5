package rdma

import (
	"gvisor.dev/gvisor/pkg/tcpip"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/rdma-netstack/rdma-netstack/internal/random"
	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/delack"
	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdr"
)

type (
	// ACKCoalescer delays pure ACKs as a queueing discipline in front of a link endpoint, for use
	// as gstack.NICOptions.QDisc. Its methods may be called at any time.
	ACKCoalescer = delack.Coalescer
	// ACKOptions changes what an ACKCoalescer does.
	ACKOptions = delack.Options
	// ACKStats counts what an ACKCoalescer did with pure ACKs.
	ACKStats = delack.Stats
)

// NewACKCoalescer makes a queueing discipline in front of lower, which is the NIC's link endpoint.
// With an *Endpoint it also saves the allocation per packet that netstack's default discipline
// makes.
func NewACKCoalescer(lower gstack.LinkWriter, opts ACKOptions) *ACKCoalescer {
	if e, ok := lower.(*Endpoint); ok {
		opts.Clock = e.opts.Clock
		return delack.New(endpointWriter{e}, e.flows.Key(), opts)
	}
	return delack.New(linkWriter{lower}, random.From(opts.Random).HashKey(), opts)
}

// endpointWriter makes a delack.Writer of an Endpoint: headers are parsed once.
type endpointWriter struct{ e *Endpoint }

func (w endpointWriter) WritePacket(pkt *gstack.PacketBuffer, s hdr.Segment) tcpip.Error {
	return w.e.writePacket(pkt, s)
}

func (w endpointWriter) WriteBurst(pkts []*gstack.PacketBuffer) { w.e.writeBurst(pkts) }

func (w endpointWriter) Answers(hash uint64) bool { return w.e.flows.Answers(hash) }

// linkWriter makes a delack.Writer of any link.
type linkWriter struct{ gstack.LinkWriter }

func (l linkWriter) WritePacket(pkt *gstack.PacketBuffer, _ hdr.Segment) tcpip.Error {
	var list gstack.PacketBufferList
	list.PushBack(pkt)
	_, err := l.WritePackets(list)
	return err
}

func (l linkWriter) WriteBurst(pkts []*gstack.PacketBuffer) {
	var list gstack.PacketBufferList
	for _, pkt := range pkts {
		list.PushBack(pkt)
	}
	_, _ = l.WritePackets(list)
}

// Answers returns false: other links tell of nothing.
func (l linkWriter) Answers(uint64) bool { return false }

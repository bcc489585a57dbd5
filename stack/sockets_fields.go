package stack

import (
	"reflect"

	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
)

// tcpFields are the places of netstack's fields that it has no option for. To look for one by its
// name takes a hundred times as long as to read it.
type tcpFields struct {
	timestamps, sack, snd, rcv, queue []int // of tcp.Endpoint
	sndWscale, mss, outstanding       []int // of tcp.sender
	rcvWscale                         []int // of tcp.receiver
	used                              []int // of tcp.sndQueueInfo
}

func newTCPFields() (f tcpFields) {
	ep := reflect.TypeFor[tcp.Endpoint]()
	place := func(of reflect.Type, name string) []int {
		field, ok := of.FieldByName(name)
		if !ok {
			panic("netstack's " + of.Name() + " has no " + name)
		}
		return field.Index
	}
	f.timestamps, f.sack = place(ep, "SendTSOk"), place(ep, "SACKPermitted")
	f.snd, f.rcv, f.queue = place(ep, "snd"), place(ep, "rcv"), place(ep, "sndQueueInfo")
	snd := ep.FieldByIndex(f.snd).Type.Elem()
	f.sndWscale, f.mss = place(snd, "SndWndScale"), place(snd, "MaxPayloadSize")
	f.outstanding = place(snd, "Outstanding")
	f.rcvWscale = place(ep.FieldByIndex(f.rcv).Type.Elem(), "RcvWndScale")
	f.used = place(ep.FieldByIndex(f.queue).Type, "SndBufUsed")
	return f
}

// read sets the ends of a socket, and of i the segment size, the number of segments in flight and
// what was agreed on. It returns how many bytes are written and not acknowledged.
func (f *tcpFields) read(ep *tcp.Endpoint, so *Socket, i *TCPInfo) (unacked int) {
	ep.LockUser()
	defer ep.UnlockUser()
	setEnds(so, &ep.TransportEndpointInfo)
	v := reflect.ValueOf(ep).Elem()
	snd := v.FieldByIndex(f.snd)
	if snd.IsNil() {
		return 0
	}
	snd = snd.Elem()
	i.Timestamps = v.FieldByIndex(f.timestamps).Bool()
	i.SACK = v.FieldByIndex(f.sack).Bool()
	i.SndWscale = int(snd.FieldByIndex(f.sndWscale).Uint())
	if rcv := v.FieldByIndex(f.rcv); !rcv.IsNil() {
		i.RcvWscale = int(rcv.Elem().FieldByIndex(f.rcvWscale).Uint())
	}
	i.MSS = int(snd.FieldByIndex(f.mss).Int())
	i.Unacked = max(0, int(snd.FieldByIndex(f.outstanding).Int()))
	return max(0, int(v.FieldByIndex(f.queue).FieldByIndex(f.used).Int()))
}

func setEnds(so *Socket, info *gstack.TransportEndpointInfo) {
	so.Local = endOf(info, info.ID.LocalAddress, info.ID.LocalPort)
	so.Remote = endOf(info, info.ID.RemoteAddress, info.ID.RemotePort)
}

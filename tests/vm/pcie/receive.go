package pcie

import "github.com/rdma-netstack/rdma-netstack/simnic"

// TIS: the model uses only its transport domain (mlx5_ifc.h, tisc).
var tiscDomain = field{296, 24}

const (
	createTISContext = 32
	queryTISContext  = 16
	queryTISOut      = queryTISContext + 160
)

func (f *Function) createTIS(in, out []byte) error {
	n, err := f.numbers[kindTIS].alloc(1)
	if err != nil {
		return err
	}
	f.objects.tis[n] = tiscDomain.u32(part(in, createTISContext, 160))
	number.set(out, uint64(n))
	return nil
}

func (f *Function) destroyTIS(in, _ []byte) error {
	n := number.u32(in)
	if _, err := find(f.objects.tis, "TIS", n); err != nil {
		return err
	}
	delete(f.objects.tis, n)
	f.numbers[kindTIS].give(n)
	return nil
}

// queryTIS executes QUERY_TIS.
func (f *Function) queryTIS(in, out []byte) error {
	td, err := find(f.objects.tis, "TIS", number.u32(in))
	tiscDomain.set(out[queryTISContext:], uint64(td))
	return err
}

// Indirection table context (rqtc), at byte 32.
var rqtcSize = field{208, 16}

const (
	rqtContext = 32
	rqtEntries = 240 // in the context: RQ numbers, one word each
)

// tableQueues decodes the entries of an indirection table.
func (f *Function) tableQueues(in []byte) ([]*simnic.RQ, error) {
	n := int(rqtcSize.get(part(in, rqtContext, rqtEntries)))
	b := part(in, rqtContext+rqtEntries, 4*n)
	rqs := make([]*simnic.RQ, n)
	for i := range rqs {
		rq, err := find(f.objects.rqs, "receive queue", be32(b, 4*i)&0xffffff)
		if err != nil {
			return nil, err
		}
		rqs[i] = rq
	}
	return rqs, nil
}

func (f *Function) createRQT(in, out []byte) error {
	rqs, err := f.tableQueues(in)
	if err != nil {
		return err
	}
	t, err := f.nic.CreateRQT(simnic.RQTAttr{RQs: rqs})
	if err != nil {
		return err
	}
	f.objects.rqts[t.Number()] = t
	number.set(out, uint64(t.Number()))
	return nil
}

func (f *Function) modifyRQT(in, _ []byte) error {
	t, err := find(f.objects.rqts, "indirection table", number.u32(in))
	if err != nil {
		return err
	}
	rqs, err := f.tableQueues(in)
	if err != nil {
		return err
	}
	return t.Modify(rqs)
}

// Transport interface receive context (tirc), at byte 32.
var (
	tircDispatch  = field{32, 4}
	tircLROMask   = field{148, 4}
	tircLROSize   = field{152, 8}
	tircRQ        = field{232, 24}
	tircSymmetric = field{256, 1}
	tircTable     = field{264, 24}
	tircHash      = field{288, 4}
	tircSelfLB    = field{294, 2}
	tircDomain    = field{296, 24}
	tircL3        = field{640, 1}
	tircL4        = field{641, 1}
	tircFields    = field{642, 30}
)

const (
	tircSize = 240
	tircKey  = 40
)

func (f *Function) createTIR(in, out []byte) error {
	ctx := part(in, queueContext, tircSize)
	attr := tirAttr(ctx)
	if err := f.tirTarget(ctx, &attr); err != nil {
		return err
	}
	t, err := f.nic.CreateTIR(attr)
	if err != nil {
		return err
	}
	f.objects.tirs[t.Number()] = t
	number.set(out, uint64(t.Number()))
	return nil
}

// tirAttr decodes a TIR context, except the destination of frames.
func tirAttr(ctx []byte) simnic.TIRAttr {
	a := simnic.TIRAttr{
		TD: tircDomain.u32(ctx), Hash: simnic.HashFunction(tircHash.get(ctx)),
		Symmetric: tircSymmetric.is(ctx),
		Selection: simnic.HashSelection{
			IPv6: tircL3.is(ctx), UDP: tircL4.is(ctx),
			Fields: simnic.HashFields(tircFields.get(ctx)),
		},
		LRO: simnic.LROAttr{
			IPv4: tircLROMask.get(ctx)&1 != 0, IPv6: tircLROMask.get(ctx)&2 != 0,
			MaxPayload: int(tircLROSize.get(ctx)) << 8,
		},
		SelfLoopbackUnicast:   tircSelfLB.get(ctx)&1 != 0,
		SelfLoopbackMulticast: tircSelfLB.get(ctx)&2 != 0,
	}
	copy(a.Key[:], ctx[tircKey:])
	if a.Hash == simnic.HashXOR8 && a.Selection.Fields == 0 {
		a.Hash = simnic.HashNone // no hash fields; linux mlx5e sets it on TIRs of a single queue
	}
	return a
}

// tirTarget finds the queue or indirection table that a TIR context names.
func (f *Function) tirTarget(ctx []byte, a *simnic.TIRAttr) (err error) {
	switch tircDispatch.get(ctx) {
	case 0:
		a.RQ, err = find(f.objects.rqs, "receive queue", tircRQ.u32(ctx))
	case 1:
		a.Table, err = find(f.objects.rqts, "indirection table", tircTable.u32(ctx))
	default:
		err = errorf(statusBadParam, "TIR dispatch type %d", tircDispatch.get(ctx))
	}
	return err
}

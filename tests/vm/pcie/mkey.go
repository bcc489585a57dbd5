package pcie

import "github.com/rdma-netstack/rdma-netstack/simnic"

// Memory key context (mkc), at byte 16 of CREATE_MKEY; the translation list from byte 272.
var (
	mkcFree         = field{1, 1}
	mkcUMR          = field{16, 1}
	mkcLocalWrite   = field{20, 1}
	mkcMode         = field{22, 2}
	mkcVariant      = field{56, 8}
	mkcPD           = field{104, 24}
	mkcStart        = field{128, 64}
	mkcLength       = field{192, 64}
	mkcTranslations = field{416, 32} // in units of two
	mkcLogPageSize  = field{474, 6}
)

// mkeyUMEM is the place of a key's memory in a UMEM.
var mkeyUMEM = umemPlace{field{97, 1}, field{800, 32}, field{832, 64}}

const (
	mkeyContext = 16
	mkeyPages   = 272
	modePhys    = 0
	modeMTT     = 1
	modeList    = 2 // KLM: pieces of other keys
)

func (f *Function) createMKey(in, out []byte) error {
	ctx := part(in, mkeyContext, 64)
	variant := uint8(mkcVariant.get(ctx))
	attr := simnic.MKeyAttr{PD: mkcPD.u32(ctx), LocalWrite: mkcLocalWrite.is(ctx),
		Variant: &variant, Free: mkcFree.is(ctx)}
	user, err := f.context(in)
	switch mode := mkcMode.get(ctx); {
	case err != nil:
	case mode == modePhys && user != nil:
		err = errorf(statusBadParam, "a key for physical addresses in a user context")
	case mode == modePhys:
		attr.Mem, err = simnic.NewBankedMemory(f.dma.banks())
	case mode == modeList && !attr.Free && !mkcUMR.is(ctx) && mkeyListed.is(in):
		err = f.joined(&attr, in, ctx)
	case mode == modeMTT:
		err = f.translated(&attr, in, ctx)
	default: // a key of keys that WQEs fill in: none of the model does, so only its number is kept
		return f.createPlain(in, out)
	}
	if err != nil {
		return err
	}
	k, err := f.nic.CreateMKey(attr)
	if err != nil {
		return err
	}
	f.objects.mkeys[k.Key()>>8] = k
	if mkeyUMEM.valid.is(in) && !attr.Free {
		f.objects.uses(k.Key()>>8, umemUse{ring: mkeyUMEM.id.u32(in)})
	}
	number.set(out, uint64(k.Key()>>8))
	return nil
}

// translated fills in a key over a list of pages. The first page holds the start address.
// A free key has no pages yet.
func (f *Function) translated(a *simnic.MKeyAttr, in, ctx []byte) error {
	shift := int(mkcLogPageSize.get(ctx))
	if shift < 12 || shift > 30 {
		return errorf(statusBadParam, "memory key with pages of 2^%d bytes", shift)
	}
	a.Start, a.Len = mkcStart.get(ctx), mkcLength.get(ctx)
	if a.Len > 1<<40 {
		return errorf(statusBadParam, "memory key of %d bytes", a.Len)
	}
	if mkcUMR.is(ctx) {
		a.UMR = &simnic.KeyTranslations{LogPage: shift, Page: f.dma.region,
			Translations: 2 * int(mkcTranslations.get(ctx))}
	}
	if a.Free {
		return nil
	}
	skew := int(a.Start & (1<<shift - 1))
	list, err := f.translations(in, shift, skew, int(a.Len))
	if err != nil {
		return err
	}
	pages, err := f.mapPages(list, shift, skew+int(a.Len))
	if err != nil {
		return err
	}
	if a.UMR != nil {
		a.UMR.List = list[:len(pages)]
	}
	a.Mem, err = simnic.NewPagedMemory(pages, skew, int(a.Len))
	return err
}

// translations are the pages of a key: those of a UMEM, or those that the command lists.
func (f *Function) translations(in []byte, shift, skew, size int) ([]uint64, error) {
	if !mkeyUMEM.valid.is(in) {
		return addresses(in, mkeyPages), nil
	}
	u, err := find(f.objects.umems, "UMEM", mkeyUMEM.id.u32(in))
	if err != nil {
		return nil, err
	}
	return u.pageAddresses(mkeyUMEM.offset.get(in), shift, skew, size)
}

// An entry of the list of a key of keys (klm), and the number of entries, in units of octowords.
var (
	klmSize    = field{0, 32}
	klmKey     = field{32, 32}
	klmAddress = field{64, 64}
	mkeyListed = field{768, 32}
)

const klmEntry = 16

// joined fills in a key over pieces of other keys. It has the memory that those keys have now: a
// key that is destroyed later does not take it away.
func (f *Function) joined(a *simnic.MKeyAttr, in, ctx []byte) error {
	n := int(mkeyListed.get(in))
	if n > (len(in)-mkeyPages)/klmEntry {
		return errorf(statusBadInput, "key of %d keys in a command of %d bytes", n, len(in))
	}
	var parts []simnic.MemoryPart
	for list := in[mkeyPages : mkeyPages+n*klmEntry]; len(list) > 0; list = list[klmEntry:] {
		size, key, addr := klmSize.get(list), klmKey.u32(list), klmAddress.get(list)
		if size == 0 {
			continue // the list is padded
		}
		k, err := find(f.objects.mkeys, "memory key", key>>8)
		if err != nil {
			return err
		}
		of := k.Attr()
		if k.Key() != key || of.PD != a.PD || of.Mem == nil || addr < of.Start ||
			addr-of.Start > of.Len || size > of.Len-(addr-of.Start) {
			return errorf(statusBadParam, "%d bytes at %#x of memory key %#x cannot be a part of "+
				"another", size, addr, key)
		}
		a.LocalWrite = a.LocalWrite && of.LocalWrite
		parts = append(parts, simnic.MemoryPart{Mem: of.Mem, Offset: addr - of.Start, Len: size})
	}
	var err error
	a.Start, a.Len = mkcStart.get(ctx), mkcLength.get(ctx)
	a.Mem, err = simnic.NewJoinedMemory(parts)
	return err
}

// destroyMKey executes DESTROY_MKEY.
func (f *Function) destroyMKey(in, out []byte) error {
	n := number.u32(in)
	if f.objects.plain[n] {
		return f.destroyPlain(in, out)
	}
	k, err := find(f.objects.mkeys, "memory key", n)
	if err != nil {
		return err
	}
	delete(f.objects.mkeys, n)
	delete(f.objects.inUMEM, n)
	return k.Destroy()
}

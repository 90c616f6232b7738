package ps

import (
	"fmt"
	"unsafe"
)

// DType is a table's element type.
type DType uint8

const (
	Float32 DType = 4
	Float64 DType = 8
)

// Size is the length of an element in bytes.
func (d DType) Size() int { return int(d) }

func (d DType) String() string {
	switch d {
	case Float32:
		return "float32"
	case Float64:
		return "float64"
	}
	return fmt.Sprintf("DType(%d)", uint8(d))
}

// TypeOf is the DType of F.
func TypeOf[F Float]() DType {
	var v F
	return DType(unsafe.Sizeof(v))
}

// Table is a dense vector of numbers that the servers hold together.
type Table struct {
	Name string
	Len  int // elements
	Type DType
}

// block is a part of a table that one server holds and one message carries.
type block struct {
	table, index int
	server       int
	begin, end   int // elements of the table
	typ          DType
}

func (b *block) elems() int { return b.end - b.begin }
func (b *block) bytes() int { return b.elems() * b.typ.Size() }

// shards is how tables are cut: blocks[table][index], in the tables' order.
type shards struct {
	tables []Table
	blocks [][]block
}

const (
	// DefaultBlockBytes is the size of a full block: large enough for the wire,
	// small enough that a server applies one block while the next arrives.
	DefaultBlockBytes = 1 << 20
	// minBlockElems keeps small tables from being cut into crumbs.
	minBlockElems = 256
	// blockAlign, in elements, keeps blocks on cache lines of their own.
	blockAlign = 16
	// maxBlocks is how many blocks a table may have. With backup workers the requests for all those of one server
	// are under way together, each with a number of its own.
	maxBlocks = maxSeq + 1
)

// cut divides each table into equal blocks, at least one per server where the
// table is long enough, and deals the blocks round to the servers, going on
// with the next table where the last one ended.
func cut(tables []Table, servers, blockBytes int) (*shards, error) {
	if servers < 1 {
		return nil, configError("tables need at least one server")
	}
	s := &shards{tables: tables}
	next := 0
	names := map[string]bool{}
	for t, table := range tables {
		switch {
		case table.Len < 1:
			return nil, configError("table %q has %d elements", table.Name, table.Len)
		case table.Type != Float32 && table.Type != Float64:
			return nil, configError("table %q has elements of type %v; float32 and float64 are possible", table.Name, table.Type)
		case names[table.Name]:
			return nil, configError("two tables are called %q", table.Name)
		}
		names[table.Name] = true
		length := max((table.Len-1)/servers+1, minBlockElems)
		length = min(length, max(blockAlign, blockBytes/table.Type.Size()/blockAlign*blockAlign))
		length = (length + blockAlign - 1) / blockAlign * blockAlign
		if table.Len > maxBlocks*length {
			return nil, configError("table %q has %d elements, which are more than %d blocks of %d: larger blocks or shorter tables are needed", table.Name, table.Len, maxBlocks, length)
		}
		var blocks []block
		for at := 0; at < table.Len; at += length {
			blocks = append(blocks, block{
				table: t, index: len(blocks), server: next % servers,
				begin: at, end: min(at+length, table.Len), typ: table.Type,
			})
			next++
		}
		s.blocks = append(s.blocks, blocks)
	}
	return s, nil
}

// table finds a table by name.
func (s *shards) table(name string) (int, error) {
	for i := range s.tables {
		if s.tables[i].Name == name {
			return i, nil
		}
	}
	return 0, configError("no table %q", name)
}

// ownedBytes is how much of the tables one server holds.
func (s *shards) ownedBytes(server int) int {
	n := 0
	for _, blocks := range s.blocks {
		for i := range blocks {
			if blocks[i].server == server {
				n += blocks[i].bytes()
			}
		}
	}
	return n
}

// mostOwned is the largest number of a table's blocks that one server has.
func (s *shards) mostOwned(table int) int {
	owned := map[int]int{}
	most := 0
	for i := range s.blocks[table] {
		server := s.blocks[table][i].server
		owned[server]++
		most = max(most, owned[server])
	}
	return most
}

// aligned returns n bytes that may be viewed as float64.
func aligned(n int) []byte {
	if n == 0 {
		return nil
	}
	words := make([]float64, (n+7)/8)
	return unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), len(words)*8)[:n]
}

// typed views aligned bytes as numbers.
func typed[F Float](b []byte) []F {
	if len(b) == 0 {
		return nil
	}
	return unsafe.Slice((*F)(unsafe.Pointer(&b[0])), len(b)/int(unsafe.Sizeof(*new(F))))
}

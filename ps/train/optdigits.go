package train

import (
	"bytes"
	"embed"
	"fmt"
)

// The data set that every build carries: Optical Recognition of Handwritten
// Digits, UCI Machine Learning Repository, E. Alpaydin and C. Kaynak, CC BY 4.0.
//
//go:embed optdigits/optdigits.tra.zst optdigits/optdigits.tes.zst
var optdigits embed.FS

func openOptdigits() (*Dataset, error) {
	var parts [2]*samples
	for i, name := range []string{"optdigits.tra", "optdigits.tes"} {
		packed, err := optdigits.ReadFile("optdigits/" + name + ".zst")
		if err != nil {
			return nil, fmt.Errorf("train: %w", err)
		}
		src, err := decompress(bytes.NewReader(packed), name)
		if err != nil {
			return nil, err
		}
		s, err := readCSV(src)
		src.Close()
		if err != nil {
			return nil, err
		}
		// All 64 columns are counts 0..16 of the same kind.
		s.pixel = true
		parts[i] = s
	}
	return assemble(Optdigits, parts[0], parts[1])
}

package train

import (
	"fmt"
	"image/color"
	"io"
	"math"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

var (
	lossColor     = color.RGBA{R: 0xc4, G: 0x4e, B: 0x52, A: 0xff}
	accuracyColor = color.RGBA{R: 0x2b, G: 0x6c, B: 0xb0, A: 0xff}
)

// drawCurve draws the training loss and, below it, the test accuracy over the
// epochs as SVG.
func drawCurve(w io.Writer, title string, metrics []Metric) error {
	var loss, accuracy plotter.XYs
	for _, m := range metrics {
		if m.Loss > 0 && !math.IsInf(m.Loss, 0) {
			loss = append(loss, plotter.XY{X: m.Epoch, Y: m.Loss})
		}
		if m.Accuracy != nil {
			accuracy = append(accuracy, plotter.XY{X: m.Epoch, Y: 100 * *m.Accuracy})
		}
	}
	top, err := panel(loss, "training loss (nats)", lossColor)
	if err != nil {
		return err
	}
	top.Title.Text = title
	// A logarithmic axis needs two different values.
	if _, _, low, high := plotter.XYRange(loss); low < high {
		top.Y.Scale = plot.LogScale{}
		top.Y.Tick.Marker = plot.LogTicks{Prec: -1}
	}
	bottom, err := panel(accuracy, "test accuracy (%)", accuracyColor)
	if err != nil {
		return err
	}
	bottom.X.Label.Text = "epoch"
	canvas := vgsvg.New(16*vg.Centimeter, 14*vg.Centimeter)
	tiles := draw.Tiles{Rows: 2, Cols: 1, PadX: vg.Millimeter, PadY: 3 * vg.Millimeter, PadTop: 2 * vg.Millimeter, PadBottom: 2 * vg.Millimeter, PadLeft: 2 * vg.Millimeter, PadRight: 4 * vg.Millimeter}
	plots := [][]*plot.Plot{{top}, {bottom}}
	for i, c := range plot.Align(plots, tiles, draw.New(canvas)) {
		plots[i][0].Draw(c[0])
	}
	if _, err := canvas.WriteTo(w); err != nil {
		return fmt.Errorf("train: curve: %w", err)
	}
	return nil
}

func panel(points plotter.XYs, label string, c color.Color) (*plot.Plot, error) {
	p := plot.New()
	p.Y.Label.Text = label
	p.Add(plotter.NewGrid())
	if len(points) == 0 {
		return p, nil
	}
	line, err := plotter.NewLine(points)
	if err != nil {
		return nil, fmt.Errorf("train: curve: %w", err)
	}
	line.Color, line.Width = c, vg.Points(1.5)
	p.Add(line)
	return p, nil
}

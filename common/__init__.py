"""What every package needs: errors, text for a terminal, files, tables, options, preprocessing. No torch."""

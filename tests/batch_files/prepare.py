print("prepared")
